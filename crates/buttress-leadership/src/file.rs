//! Settings as files have them, and what is known as pages show it.

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{DegradedBy, Identity, LeaseConfig, LeaseName, SignalRole, State};

/// What a file leaves out. Of the name nobody knows.
pub(crate) fn without_a_name() -> LeaseConfig {
    LeaseConfig::new(LeaseName::none())
}

impl<'de> Deserialize<'de> for LeaseConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The derived one is not of the trait.
        let config = Self::deserialize(deserializer)?;
        if config.name == LeaseName::none() {
            return Err(D::Error::missing_field("name"));
        }
        Ok(config)
    }
}

impl Serialize for LeaseConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for LeaseName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl Serialize for LeaseName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// By the names that events and labels have.
macro_rules! by_name {
    ($($type:ty),+) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )+};
}

by_name!(Identity, State, DegradedBy, SignalRole);

/// A payload that is to be text. Others wrote it: what is not is no reason to show nothing.
pub(crate) fn lossy<S: Serializer>(payload: &Bytes, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&String::from_utf8_lossy(payload))
}

/// A payload that is text.
pub(crate) mod text {
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serializer, ser::Error};

    pub(crate) fn serialize<S: Serializer>(payload: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        let text = str::from_utf8(payload);
        to.serialize_str(text.map_err(|_| S::Error::custom("`payload` is not text"))?)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        String::deserialize(from).map(Bytes::from)
    }
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use std::time::Duration;

    use buttress_core::{Health, Reading};

    use super::*;
    use crate::{Elector, MemoryStore, OnDrainTimeout, ResignPolicy, ResignSettings};

    fn read(text: &str) -> Result<LeaseConfig, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_says_only_what_differs_and_durations_as_people_write_them() {
        let of = |config: LeaseConfig, like: &LeaseConfig| config.identity(like.identity.clone());
        let name = LeaseName::new("billing/nightly").unwrap();
        let plain = read(r#"{ "name": "billing/nightly" }"#).unwrap();
        assert_eq!(plain, of(LeaseConfig::new(name.clone()), &plain));
        assert!(plain.check().is_ok());
        let full = LeaseConfig::new(name)
            .payload("10.0.0.7:8080")
            .lease_duration(Duration::from_secs(10))
            .renew_interval(Duration::from_secs(3))
            .retry_period(Duration::from_millis(250))
            .operation_timeout(Duration::from_millis(1500))
            .safety_margin(Duration::from_secs(1))
            .release_on_stop(false)
            .drain(Duration::from_secs(7), Duration::from_millis(500))
            .on_drain_timeout(OnDrainTimeout::ReleaseAnyway)
            .cooldown(Duration::from_secs(20), Duration::from_secs(90))
            .probe_deadline(Duration::from_secs(4));
        let text = serde_json::to_string(&full).unwrap();
        for part in [r#""retry_period":"250ms""#, r#""on_drain_timeout":"release_anyway""#] {
            assert!(text.contains(part), "{text}");
        }
        let back = read(&text).unwrap();
        assert_eq!(of(full, &back), back);
        let never = plain.cooldown(Duration::MAX, Duration::MAX).probe_deadline(Duration::MAX);
        let back = read(&serde_json::to_string(&never).unwrap()).unwrap();
        assert_eq!(of(never, &back), back);
    }

    // kubernetes/kubernetes#22775
    #[test]
    fn two_that_read_one_file_are_two() {
        let written = serde_json::to_string(&read(r#"{ "name": "a" }"#).unwrap()).unwrap();
        let (one, other) = (read(&written).unwrap(), read(&written).unwrap());
        assert!(one.identity != other.identity && one.identity.is_unique());
        for field in [r#""identity": "node-7""#, r#""allow_stable_identity": true"#] {
            let error = read(&format!(r#"{{ "name": "a", {field} }}"#)).unwrap_err();
            assert!(error.contains("unknown field"), "{error}");
        }
    }

    #[test]
    fn what_is_wrong_in_a_file_is_named() {
        for (text, named) in [
            ("{}", "missing field `name`"),
            (r#"{ "name": "" }"#, "invalid setting `name`"),
            (r#"{ "name": "a", "lease_duraton": "15s" }"#, "lease_duraton"),
            (r#"{ "name": "a", "lease_duration": "15 apples" }"#, "15 apples"),
            (r#"{ "name": "a", "lease_duration": 15 }"#, "15"),
            (r#"{ "name": "a", "on_drain_timeout": "never" }"#, "hold_until_expiry"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
        let binary = LeaseConfig::new(LeaseName::new("a").unwrap()).payload(&b"\xff"[..]);
        let error = serde_json::to_string(&binary).unwrap_err().to_string();
        assert!(error.contains("`payload`"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_known_can_be_shown_whatever_the_leader_says_of_itself() {
        let name = LeaseName::new("a").unwrap();
        let config = |payload: &'static [u8]| LeaseConfig::new(name.clone()).payload(payload);
        let (store, config) = (MemoryStore::new(), [config(b"10.0.0.7:8080"), config(b"\xff")]);
        let ill = |_| Reading { health: Health::Unhealthy, since: None };
        let policy = ResignPolicy::new().advisory("cache", ill);
        for (config, shown) in config.into_iter().zip(["10.0.0.7:8080", "\u{fffd}"]) {
            let elector = Elector::new(store.clone(), config).unwrap();
            let elector = elector.resign_when(policy.clone()).unwrap();
            let leadership = elector.leadership();
            let running = elector.spawn();
            leadership.watch().wait_for(|standing| standing.term.is_some()).await.unwrap();
            let status = leadership.status();
            let fence = status.fence.unwrap().to_string();
            let identity = status.identity.as_str();
            let json = serde_json::json!({
                "identity": identity,
                "state": "leader",
                "is_leader": true,
                "fence": fence,
                "valid_for": "12s",
                "cooldown_remaining": null,
                "leader": { "identity": identity, "fence": fence, "payload": shown },
                "observation_age": "0s",
                "last_error": null,
                "degraded": null,
                "signals": [{ "name": "cache", "role": "advisory", "health": "unhealthy" }],
            });
            assert_eq!(serde_json::to_value(&status).unwrap(), json);
            running.stop().await;
        }
    }

    #[test]
    fn when_a_leader_leaves_is_in_a_file_as_well() {
        let read = |text| serde_json::from_str::<ResignSettings>(text);
        assert_eq!(read("{}").unwrap(), ResignSettings::default());
        let settings =
            read(r#"{ "resign_after": "0s", "check_every": "100ms", "budget": 1 }"#).unwrap();
        assert_eq!(settings.resign_after, Some(Duration::ZERO));
        let text = serde_json::to_string(&settings).unwrap();
        assert_eq!(read(&text).unwrap(), settings);
        assert!(
            read(r#"{ "resign_afer": "0s" }"#).unwrap_err().to_string().contains("resign_afer")
        );
    }
}
