//! What examples share: a service of gRPC, `shop.Orders`, and how programs speak to whoever runs them.

pub mod cli;

/// The messages of `shop.Orders`, and its client and server as `build.rs` has them written.
pub mod shop {
    #![allow(missing_docs, reason = "most of it is written by tonic's generator")]

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Order {
        #[prost(string, tag = "1")]
        pub item: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Receipt {
        #[prost(uint64, tag = "1")]
        pub cents: u64,
    }

    include!(concat!(env!("OUT_DIR"), "/shop.Orders.rs"));
}
