//! Leader election over leases.
//!
//! Many tasks need exactly one active instance. A [`LeaseStore`] says who holds a lease, for a while; whoever holds it
//! leads until shortly before it ends, and each term has a [`FencingToken`], by which a resource tells a leader from
//! one that was.

mod clock;
mod config;
mod erased;
mod faulty;
mod memory;
mod name;
mod record;
mod store;
mod token;

pub use self::{
    clock::{BootTime, LeaseClock},
    config::{LeaseConfig, OnDrainTimeout},
    erased::ErasedStore,
    faulty::{Called, Fault, FaultyStore, Operation},
    memory::MemoryStore,
    name::{Identity, LeaseName},
    record::{LeaderInfo, LeaseRecord, StoreTime},
    store::{
        AcquireOutcome, AcquireRequest, Changes, Expiry, FenceSource, LeaseStore, ReleaseOutcome,
        ReleaseRequest, RenewOutcome, RenewRequest, ServerClock, StoreCapabilities, StoreError,
    },
    token::{FencingToken, NotAToken},
};
