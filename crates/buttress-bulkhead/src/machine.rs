//! Who waits, and who is next.

use std::collections::BTreeMap;

/// A place in the queue: the lower, the earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// A bounded queue, first come, first served.
///
/// A ticket that is no longer in it has been called: there is no second list in which a call could get
/// lost. Whoever leaves learns from that whether a slot is theirs to pass on.
#[derive(Debug)]
pub(crate) struct Queue<W> {
    waiting: BTreeMap<Ticket, W>,
    next: u64,
    places: usize,
    left: Left,
}

/// How many left before they were called, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) timed_out: u64,
    pub(crate) expired: u64,
    pub(crate) abandoned: u64,
}

/// Why somebody leaves the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// They have waited as long as anybody may.
    TimedOut,
    /// Their deadline came first.
    Expired,
    /// They no longer ask.
    Abandoned,
}

// === impl Queue ===

impl<W> Queue<W> {
    pub(crate) fn new(places: usize) -> Self {
        Self { waiting: BTreeMap::new(), next: 0, places, left: Left::default() }
    }

    /// Takes the last place. `None` if there is none left.
    pub(crate) fn join(&mut self, who: W) -> Option<Ticket> {
        if self.len() >= self.places {
            return None;
        }
        let ticket = Ticket(self.next);
        self.next += 1;
        self.waiting.insert(ticket, who);
        Some(ticket)
    }

    /// Calls whoever has waited longest.
    pub(crate) fn call(&mut self) -> Option<W> {
        self.waiting.pop_first().map(|(_, who)| who)
    }

    /// Whoever waits with that ticket. `None` once they have been called.
    pub(crate) fn find(&mut self, ticket: Ticket) -> Option<&mut W> {
        self.waiting.get_mut(&ticket)
    }

    /// Leaves the queue, or turns the call down. `None` if they have been called: then a slot is theirs,
    /// and has to be given back.
    pub(crate) fn leave(&mut self, ticket: Ticket, why: Why) -> Option<W> {
        let who = self.waiting.remove(&ticket)?;
        match why {
            Why::TimedOut => self.left.timed_out += 1,
            Why::Expired => self.left.expired += 1,
            Why::Abandoned => self.left.abandoned += 1,
        }
        Some(who)
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn left(&self) -> Left {
        self.left
    }
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Join,
        Call,
        Leave(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => Just(Step::Join),
            2 => Just(Step::Call),
            2 => any::<prop::sample::Index>().prop_map(|of| Step::Leave(of.index(64))),
        ]
    }

    proptest! {
        #[test]
        fn it_is_a_list_that_is_joined_at_the_back_and_called_from_the_front(
            places in 0_usize..6,
            steps in prop::collection::vec(step(), 0..64),
        ) {
            let mut queue = Queue::new(places);
            let mut list: Vec<usize> = Vec::new();
            let mut tickets: Vec<Option<Ticket>> = Vec::new();
            let mut left = Left::default();
            for step in steps {
                match step {
                    Step::Join => {
                        let who = tickets.len();
                        if let Some(ticket) = queue.join(who) {
                            list.push(who);
                            tickets.push(Some(ticket));
                        } else {
                            prop_assert_eq!(list.len(), places);
                        }
                    }
                    Step::Call => {
                        let first = (!list.is_empty()).then(|| list.remove(0));
                        prop_assert_eq!(queue.call(), first);
                    }
                    Step::Leave(of) => {
                        let Some(ticket) = tickets.get_mut(of).and_then(Option::take) else { continue };
                        let waits = list.iter().position(|who| *who == of);
                        prop_assert_eq!(queue.find(ticket).copied(), waits.map(|_| of));
                        prop_assert_eq!(queue.leave(ticket, Why::TimedOut), waits.map(|_| of));
                        if let Some(at) = waits {
                            list.remove(at);
                            left.timed_out += 1;
                        }
                    }
                }
                prop_assert_eq!(queue.len(), list.len());
                prop_assert_eq!(queue.is_empty(), list.is_empty());
                prop_assert_eq!(queue.left(), left);
            }
        }
    }

    #[test]
    fn each_reason_to_leave_has_a_count_of_its_own() {
        let mut queue = Queue::new(3);
        for why in [Why::TimedOut, Why::Expired, Why::Abandoned] {
            let ticket = queue.join(()).unwrap();
            queue.leave(ticket, why);
        }
        assert_eq!(queue.left(), Left { timed_out: 1, expired: 1, abandoned: 1 });
    }
}
