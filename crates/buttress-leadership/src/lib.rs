//! Leader election over leases.
//!
//! Many tasks need exactly one active instance. A [`LeaseStore`] says who holds a lease, for a while; whoever
//! holds it leads until shortly before it ends, and each term has a [`FencingToken`], by which a resource
//! tells a leader from one that was.

mod clock;
mod config;
mod elector;
mod erased;
mod event;
mod faulty;
mod future;
mod gate;
mod layer;
mod leadership;
#[cfg(all(test, buttress_loom))]
mod loom;
mod machine;
mod memory;
mod metrics;
mod name;
mod permit;
mod planted;
mod record;
mod service;
#[cfg(all(test, not(buttress_loom)))]
mod simulation;
mod store;
mod sync;
mod token;

pub use self::{
    clock::{BootTime, LeaseClock},
    config::{LeaseConfig, OnDrainTimeout},
    elector::{Elector, ElectorTask},
    erased::ErasedStore,
    event::{Event, ResignReason, State, TermEnd},
    faulty::{Called, Fault, FaultyStore, Operation},
    future::{ResponseFuture, TermOver},
    layer::{LeadershipLayer, OnExpiry},
    leadership::{Leadership, NotLeading},
    memory::MemoryStore,
    metrics::{
        LeadershipMetrics, OperationMetrics, RequestMetrics, Standing, Status, StoreMetrics,
    },
    name::{Identity, LeaseName},
    permit::{LeaderTerm, TermPermit},
    record::{LeaderInfo, LeaseRecord, StoreTime},
    service::LeadershipService,
    store::{
        AcquireOutcome, AcquireRequest, Changes, Expiry, FenceSource, LeaseStore, ReleaseOutcome,
        ReleaseRequest, RenewOutcome, RenewRequest, ServerClock, StoreCapabilities, StoreError,
    },
    token::{FencingToken, NotAToken},
};

/// What refusals call this layer.
const NAME: &str = "leadership";
