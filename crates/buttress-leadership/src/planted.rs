//! Faults that the checks must find. There are none but in tests of this crate.

/// One that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plant {
    /// A lease counts from the answer, and not from the request.
    AnchorAtAnswer,
    /// Leaders lead to the end of the lease.
    NoMargin,
    /// The gate does not look at the clock.
    CachedFlag,
    /// A leader that leaves gives the lease back while its work goes on.
    ReleaseBeforeDrain,
    /// A token that is less than one before is as good as any.
    AnyFence,
    /// No answer to a renewal is a loss.
    NoAnswerIsLoss,
    /// The next term begins beside the last one's work.
    CampaignWhileWorking,
    /// All look at the same time.
    NoJitter,
    /// A term ends twice.
    EndTwice,
    /// A leader renews what it has given back.
    RenewAfterRelease,
    /// The work of a term that is over is left alone.
    WorkIsNotDropped,
    /// A failed call is repeated at once.
    NoPause,
    /// A term does not end while a call hangs.
    HangKeepsTerm,
    /// What nobody knows is as good as an illness.
    UnknownIsUnhealthy,
    /// A leader leaves as soon as something is unhealthy.
    NoHold,
    /// However young its term is.
    NoMinTerm,
    /// However often it has.
    NoBudget,
    /// Even if it is the same with everybody.
    NoCorrelation,
    /// Candidates stand however ill they are.
    AnyoneStands,
    /// Nobody stands as the last resort.
    NoLastResort,
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Plant>> = const { std::cell::Cell::new(None) };
}

/// Whether it is there.
#[inline]
pub(crate) fn is_planted(plant: Plant) -> bool {
    #[cfg(test)]
    return PLANTED.get() == Some(plant);
    #[cfg(not(test))]
    {
        let _ = plant;
        false
    }
}

/// Plants a fault on this thread, or takes it out.
#[cfg(all(test, not(buttress_loom)))]
pub(crate) fn plant(plant: Option<Plant>) {
    PLANTED.set(plant);
}
