//! What an API server does with leases: a copy of what the real one is seen to do, without a network.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicU64, Ordering},
};

use serde_json::{Map, Value, json};

/// All leases, and what has happened to them.
#[derive(Debug)]
pub(crate) struct Leases {
    /// Of the latest write. Every write of the server has its own, whatever it is of.
    pub(crate) revision: u64,
    pub(crate) namespaces: BTreeSet<String>,
    all: BTreeMap<Key, Value>,
    events: Vec<Event>,
}

/// A namespace, and a name in it.
pub(crate) type Key = (String, String);

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) revision: u64,
    pub(crate) key: Key,
    pub(crate) kind: &'static str,
    pub(crate) object: Value,
}

/// Why something is not done, as clients are told.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) code: u16,
    reason: &'static str,
    message: String,
    /// Of what kind that is which is not there, and its name.
    details: Option<(&'static str, String)>,
}

pub(crate) type Answer = Result<Value, Refused>;

/// A field, and what it may be.
type Field = (&'static str, fn(&Value) -> bool);

const METADATA: &[Field] = &[
    ("name", Value::is_string),
    ("namespace", Value::is_string),
    ("uid", Value::is_string),
    ("resourceVersion", Value::is_string),
    ("labels", is_texts),
    ("annotations", is_texts),
];
const SPEC: &[Field] = &[
    ("holderIdentity", Value::is_string),
    ("leaseDurationSeconds", is_int32),
    ("acquireTime", is_micro_time),
    ("renewTime", is_micro_time),
    ("leaseTransitions", is_int32),
    ("strategy", Value::is_string),
    ("preferredHolder", Value::is_string),
];

/// What all annotations of an object may have together, in bytes.
const ANNOTATIONS: usize = 256 * 1024;
const CHANGED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

// === impl Leases ===

impl Leases {
    pub(crate) fn new() -> Self {
        let namespaces = BTreeSet::from(["default".to_owned()]);
        // A cluster has written a little before anybody has a lease.
        Self { revision: 100, namespaces, all: BTreeMap::new(), events: Vec::new() }
    }

    pub(crate) fn get(&self, key: &Key) -> Answer {
        self.all.get(key).cloned().ok_or_else(|| Refused::not_found("leases", &key.1))
    }

    pub(crate) fn list(&self, namespace: &str) -> Value {
        let items = self.all.iter().filter(|((of, _), _)| of == namespace);
        json!({
            "kind": "LeaseList",
            "apiVersion": "coordination.k8s.io/v1",
            "metadata": { "resourceVersion": self.revision.to_string() },
            "items": items.map(|(_, lease)| lease).collect::<Vec<_>>(),
        })
    }

    pub(crate) fn create(&mut self, namespace: &str, body: &[u8]) -> Answer {
        let lease = decode(body)?;
        let key = (namespace.to_owned(), text(&lease, "name").to_owned());
        if !text(&lease, "resourceVersion").is_empty() {
            let message = "resourceVersion should not be set on objects to be created";
            return Err(Refused::new(500, "InternalError", message));
        }
        self.begin(key, lease)
    }

    /// Writes over what is there, if it is what the writer has seen. What is not there is made, unless the writer
    /// has seen some.
    pub(crate) fn update(&mut self, key: &Key, body: &[u8]) -> Answer {
        let mut lease = decode(body)?;
        let (uid, version) = (text(&lease, "uid"), text(&lease, "resourceVersion"));
        if text(&lease, "name") != key.1 {
            let message = "the name of the object does not match the name on the URL";
            return Err(Refused::new(400, "BadRequest", message));
        }
        let before = self.all.get(key);
        if !uid.is_empty() && before.map(|before| text(before, "uid")) != Some(uid) {
            let why = "Precondition failed: UID in precondition and in object meta differ";
            return Err(Refused::conflict(&key.1, why));
        }
        let Some(before) = before else {
            return self.begin(key.clone(), lease);
        };
        if version.is_empty() {
            let what =
                "metadata.resourceVersion: Invalid value: 0: must be specified for an update";
            return Err(Refused::invalid(&key.1, what));
        }
        if version.parse::<u64>().is_err() {
            return Err(Refused::new(400, "BadRequest", "resourceVersion: Invalid value"));
        }
        if version != text(before, "resourceVersion") {
            return Err(Refused::conflict(&key.1, CHANGED));
        }
        validate(&lease)?;
        for kept in ["uid", "creationTimestamp", "namespace"] {
            lease["metadata"][kept] = before["metadata"][kept].clone();
        }
        // Who changes nothing writes nothing.
        if lease == *before {
            return Ok(lease);
        }
        Ok(self.write(key.clone(), "MODIFIED", lease))
    }

    pub(crate) fn delete(&mut self, key: &Key) -> Answer {
        let lease = self.get(key)?;
        self.write(key.clone(), "DELETED", lease);
        self.all.remove(key);
        Ok(json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" }))
    }

    /// What happened after that revision.
    pub(crate) fn events(&self, after: u64) -> impl Iterator<Item = &Event> {
        let from = self.events.partition_point(|event| event.revision <= after);
        self.events[from..].iter()
    }

    /// Writes whatever is wanted, as nobody could by way of the server.
    pub(crate) fn force(&mut self, key: Key, lease: Value) {
        self.write(key, "MODIFIED", lease);
    }

    fn begin(&mut self, key: Key, mut lease: Value) -> Answer {
        if !self.namespaces.contains(&key.0) {
            return Err(Refused::not_found("namespaces", &key.0));
        }
        validate(&lease)?;
        if self.all.contains_key(&key) {
            let message = format!("leases.coordination.k8s.io {:?} already exists", key.1);
            return Err(Refused::new(409, "AlreadyExists", message));
        }
        // No object has that of another one, also if the data were lost in between.
        static UIDS: AtomicU64 = AtomicU64::new(1);
        let uid = UIDS.fetch_add(1, Ordering::Relaxed);
        let metadata = &mut lease["metadata"];
        metadata["uid"] = format!("00000000-0000-4000-8000-{uid:012}").into();
        metadata["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
        metadata["namespace"] = key.0.clone().into();
        Ok(self.write(key, "ADDED", lease))
    }

    fn write(&mut self, key: Key, kind: &'static str, mut lease: Value) -> Value {
        self.revision += 1;
        lease["metadata"]["resourceVersion"] = self.revision.to_string().into();
        let (revision, object) = (self.revision, lease.clone());
        self.events.push(Event { revision, key: key.clone(), kind, object });
        self.all.insert(key, lease.clone());
        lease
    }
}

// === Reading and checking ===

/// The lease that was sent, without what a lease does not have.
fn decode(body: &[u8]) -> Answer {
    let bad = |what: String| {
        let message = format!("Lease in version \"v1\" cannot be handled as a Lease: {what}");
        Refused::new(400, "BadRequest", message)
    };
    let sent: Value = serde_json::from_slice(body).map_err(|error| bad(error.to_string()))?;
    for (field, is) in [("kind", "Lease"), ("apiVersion", "coordination.k8s.io/v1")] {
        if sent[field] != is {
            return Err(bad(format!("{field} is {}", sent[field])));
        }
    }
    let mut lease = json!({ "kind": "Lease", "apiVersion": "coordination.k8s.io/v1" });
    for (part, fields) in [("metadata", METADATA), ("spec", SPEC)] {
        let mut kept = Map::new();
        for (field, is_right) in fields {
            match &sent[part][field] {
                Value::Null => {}
                value if is_right(value) => {
                    kept.insert((*field).to_owned(), value.clone());
                }
                value => return Err(bad(format!("{part}.{field} cannot be {value}"))),
            }
        }
        lease[part] = kept.into();
    }
    Ok(lease)
}

fn validate(lease: &Value) -> Result<(), Refused> {
    let name = text(lease, "name");
    let refuse = |what: &str| Err(Refused::invalid(name, what));
    if !is_subdomain(name) {
        return refuse("metadata.name: Invalid value: a lowercase RFC 1123 subdomain is wanted");
    }
    let annotations = lease["metadata"]["annotations"].as_object().into_iter().flatten();
    let size = annotations.map(|(key, value)| key.len() + value.as_str().map_or(0, str::len));
    if ANNOTATIONS < size.sum() {
        return refuse("metadata.annotations: Too long: may not be more than 262144 bytes");
    }
    let spec = &lease["spec"];
    if spec["leaseDurationSeconds"].as_i64().is_some_and(|seconds| seconds <= 0) {
        return refuse("spec.leaseDurationSeconds: Invalid value: must be greater than 0");
    }
    if spec["leaseTransitions"].as_i64().is_some_and(|transitions| transitions < 0) {
        return refuse("spec.leaseTransitions: Invalid value: must be greater than or equal to 0");
    }
    if spec["preferredHolder"].is_string() && !spec["strategy"].is_string() {
        return refuse("spec.preferredHolder: Forbidden: may only be specified with a strategy");
    }
    Ok(())
}

fn is_subdomain(name: &str) -> bool {
    let is_label = |label: &str| {
        let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !label.is_empty() && label.chars().all(is_inner) && label.trim_matches('-') == label
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

fn is_texts(value: &Value) -> bool {
    value.as_object().is_some_and(|texts| texts.values().all(Value::is_string))
}

fn is_int32(value: &Value) -> bool {
    value.as_i64().is_some_and(|number| i32::try_from(number).is_ok())
}

/// Six digits after the second, no fewer and no more, or it is not read at all.
fn is_micro_time(value: &Value) -> bool {
    const FORM: &str = "0000-00-00T00:00:00.000000Z";
    value.as_str().is_some_and(|time| {
        let like = |(is, form): (char, char)| is == form || form == '0' && is.is_ascii_digit();
        time.len() == FORM.len() && time.chars().zip(FORM.chars()).all(like)
    })
}

fn text<'a>(lease: &'a Value, field: &str) -> &'a str {
    lease["metadata"][field].as_str().unwrap_or_default()
}

// === impl Refused ===

impl Refused {
    pub(crate) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None }
    }

    pub(crate) fn not_found(kind: &'static str, name: &str) -> Self {
        let of = if kind == "leases" { "leases.coordination.k8s.io" } else { kind };
        let refused = Self::new(404, "NotFound", format!("{of} {name:?} not found"));
        Self { details: Some((kind, name.to_owned())), ..refused }
    }

    fn conflict(name: &str, why: &str) -> Self {
        let what = format!("Operation cannot be fulfilled on leases.coordination.k8s.io {name:?}");
        Self::new(409, "Conflict", format!("{what}: {why}"))
    }

    fn invalid(name: &str, what: &str) -> Self {
        let message = format!("Lease.coordination.k8s.io {name:?} is invalid: {what}");
        Self::new(422, "Invalid", message)
    }

    pub(crate) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        });
        if let Some((kind, name)) = &self.details {
            status["details"] = json!({ "name": name, "kind": kind });
        }
        status
    }
}
