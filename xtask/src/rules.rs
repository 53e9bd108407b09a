//! Who may depend on whom.
//!
//! A stack of crates that each stand alone stays one only if nobody reaches across: once retry knows the
//! breaker, whoever wants one has both. The rules are tables, each row with its reason; what is not in a row is
//! refused. Only what users build counts: tests may depend on anything.

use std::{collections::BTreeSet, fs};

use cargo_metadata::{DependencyKind, Package};

use crate::{files, steps::Outcome, workspace::Workspace};

// === The tables ===

/// Every member of the workspace and the rules that it obeys.
const MEMBERS: &[(&str, Role)] = &[
    ("buttress", FACADE),
    ("buttress-benches", INSIDE),
    ("buttress-breaker", PATTERN),
    ("buttress-bulkhead", PATTERN),
    ("buttress-chaos", INSIDE),
    ("buttress-core", CORE),
    ("buttress-deadline", PATTERN),
    ("buttress-examples", INSIDE),
    ("buttress-fallback", PATTERN),
    ("buttress-http", HTTP),
    ("buttress-leadership", LEADERSHIP),
    ("buttress-lease-etcd", LEASE_ETCD),
    ("buttress-lease-kubernetes", LEASE_KUBERNETES),
    ("buttress-lease-postgres", LEASE_POSTGRES),
    ("buttress-lease-redis", LEASE_REDIS),
    ("buttress-lease-sqlite", LEASE_SQLITE),
    ("buttress-retry", PATTERN),
    ("buttress-servers", SERVERS),
    ("buttress-shed", PATTERN),
    ("buttress-test", KIT),
    ("buttress-tests", INSIDE),
    ("xtask", COMMANDS),
];

const PATTERN: Role = Role {
    law: "a pattern knows core and its dice, and neither another pattern nor tower itself",
    may: Some(&[
        always("buttress-core", "the vocabulary, the clock and the dice"),
        always("pin-project-lite", "named futures without unsafe"),
        always("tokio", "time, sync, and rt for the coop budget"),
        always("tower-layer", "the `Layer` trait"),
        always("tower-service", "the `Service` trait"),
        always("tracing", "events for the rare"),
        optional("humantime-serde", "durations in settings"),
        optional("serde", "settings from files"),
        under("cfg(not(buttress_loom))", "arc-swap", "the breaker of a key, found past the lock"),
        under("cfg(buttress_loom)", "loom", "models of what is shared"),
    ]),
};

const LEADERSHIP: Role = Role {
    law: "leadership is a pattern, with a clock and a shared word of its own, and no client of a store",
    may: Some(&[
        always("buttress-core", "the vocabulary, the clock and the dice"),
        always("bytes", "what leaders say of themselves is kept as handles"),
        always("futures-core", "the `Stream` of a store's changes"),
        always("pin-project-lite", "named futures without unsafe"),
        always("tokio", "time, sync, and rt for the work of a term"),
        always("tower-layer", "the `Layer` trait"),
        always("tower-service", "the `Service` trait"),
        always("tracing", "events for the rare"),
        optional("humantime-serde", "durations in settings"),
        optional("serde", "settings from files"),
        under("cfg(unix)", "rustix", "the clock that counts suspend"),
        under("cfg(not(buttress_loom))", "arc-swap", "the term that a request is let in by"),
        under("cfg(buttress_loom)", "loom", "models of what is shared"),
    ]),
};

const LEASE_ETCD: Role = Role {
    law: "a store knows leadership and its own client, and no other store",
    may: Some(&[
        always("buttress-leadership", "the `LeaseStore` trait"),
        always("etcd-client", "the client"),
        always("futures-core", "the `Stream` of changes"),
        always(
            "hyper",
            "the connection beneath the client, which whoever waits serves, and TLS stands under",
        ),
        always("hyper-util", "tokio beneath hyper"),
        always("tokio", "net, sync and time: its connections, and who waits for which"),
        always("tonic", "the client's bodies and codes"),
        always("tower", "the box that the client takes a connection in"),
        always("tower-service", "the `Service` that such a connection is"),
    ]),
};

const LEASE_KUBERNETES: Role = Role {
    law: "a store knows leadership and its own client, and no other store",
    may: Some(&[
        always("buttress-core", "the wall clock, which those who read a lease are shown"),
        always("buttress-leadership", "the `LeaseStore` trait"),
        always("futures-core", "the `Stream` of changes"),
        always("http", "who asks, in a header"),
        always("hyper-util", "the client's errors: whether anything was sent"),
        always("k8s-openapi", "the type of a lease"),
        always("kube", "the client"),
        always(
            "tokio",
            "sync and time: one call after the other, and a watch that says nothing ends",
        ),
    ]),
};

const LEASE_POSTGRES: Role = Role {
    law: "a store knows leadership and its own client, and no other store",
    may: Some(&[
        always("buttress-leadership", "the `LeaseStore` trait"),
        always("futures-core", "the `Stream` of changes"),
        always("tokio", "sync and time: one call after the other, and a pause between connections"),
        always("tokio-postgres", "the client"),
    ]),
};

const LEASE_REDIS: Role = Role {
    law: "a store knows leadership and its own client, and no other store",
    may: Some(&[
        always("buttress-leadership", "the `LeaseStore` trait"),
        always("futures-core", "the `Stream` of changes"),
        always("redis", "the client"),
        always("tokio", "net, sync and time: its connections, and who waits for which"),
    ]),
};

const LEASE_SQLITE: Role = Role {
    law: "a store knows leadership and its own client, and no other store",
    may: Some(&[
        always("buttress-leadership", "the `LeaseStore` trait"),
        always("bytes", "what leaders say of themselves is kept as handles"),
        always("rusqlite", "the client"),
        always("tokio", "sync, to wait for the store's thread"),
    ]),
};

const CORE: Role = Role {
    law: "core has no layer in it, and is the one door to the dice",
    may: Some(&[
        always("pin-project-lite", "named futures without unsafe"),
        always("rand", "the dice, which the patterns roll through core"),
        always("tokio", "the clock, and rt for the coop budget"),
        always("tower-service", "one component readies a service and calls it"),
        optional("serde", "tokens in what is stored and sent"),
        optional("tonic", "a gRPC status in what our errors come from, which is where tonic looks"),
        under("cfg(buttress_loom)", "loom", "models of what is shared"),
    ]),
};

const HTTP: Role = Role {
    law: "HTTP knows core and no pattern; what knows a client is a feature each, off by default",
    may: Some(&[
        always("buttress-core", "the vocabulary, the clock and the dice"),
        always("bytes", "recorded bodies keep their frames as handles"),
        always("http", "the types of requests and responses"),
        always("http-body", "the `Body` trait"),
        always("http-body-util", "bodies of our own"),
        always("httpdate", "the date forms of Retry-After"),
        always("pin-project-lite", "named futures without unsafe"),
        always("tokio", "time, for deadlines of bodies"),
        always("tower-layer", "the `Layer` trait"),
        always("tower-service", "the `Service` trait"),
        always("tracing", "events for the rare"),
        optional("h2", "the reasons of HTTP/2, in hyper's errors"),
        optional("hyper", "its errors, to classify them"),
        optional("hyper-util", "its client's errors, to classify them"),
        optional("reqwest", "its types, to fit it into a stack, and its errors"),
        optional("tonic", "its bodies, to fit it into a stack, its status, and its errors"),
    ]),
};

const KIT: Role = Role {
    law: "the contract kit tests layers of anybody, and so knows none of ours",
    may: Some(&[
        always("buttress-core", "the vocabulary that it speaks to layers"),
        always("pin-project-lite", "named futures without unsafe"),
        always("tokio", "the paused clock"),
        always("tower-layer", "the `Layer` trait"),
        always("tower-service", "the `Service` trait"),
    ]),
};

const SERVERS: Role = Role {
    law: "what starts servers for tests knows nothing of ours",
    may: Some(&[
        always("axum", "the fake of Kubernetes' API"),
        always("futures-util", "what that tells those who watch"),
        always("rustix", "signals without unsafe"),
        always("serde_json", "what that keeps and says"),
        always("tokio", "the proxy, and to wait for answers"),
    ]),
};

const FACADE: Role = Role {
    law: "the facade re-exports: each pattern behind a feature, and no logic that would need more",
    may: Some(&[
        always("buttress-core", "the vocabulary"),
        optional("buttress-breaker", "a pattern"),
        optional("buttress-bulkhead", "a pattern"),
        optional("buttress-deadline", "a pattern"),
        optional("buttress-fallback", "a pattern"),
        optional("buttress-http", "HTTP's classes, bodies and adapters"),
        optional("buttress-leadership", "a pattern"),
        optional("buttress-lease-etcd", "a store of leases"),
        optional("buttress-lease-kubernetes", "a store of leases"),
        optional("buttress-lease-postgres", "a store of leases"),
        optional("buttress-lease-redis", "a store of leases"),
        optional("buttress-lease-sqlite", "a store of leases"),
        optional("buttress-retry", "a pattern"),
        optional("buttress-shed", "a pattern"),
        optional("http", "the types that the standard HTTP stack names"),
        optional("humantime-serde", "durations in settings"),
        optional("serde", "settings from files"),
        always("tower-layer", "the `Layer` trait"),
        always("tower-service", "the `Service` trait"),
    ]),
};

const INSIDE: Role = Role { law: "what nobody depends on may depend on everything", may: None };

const COMMANDS: Role = Role {
    law: "the commands build before anything else, and so stay small",
    may: Some(&[
        always("cargo_metadata", "what cargo knows of the workspace"),
        always("clap", "arguments"),
        always("serde", "the record of what calls cost; cargo_metadata builds it already"),
        always("serde_json", "the same; cargo_metadata builds it already"),
    ]),
};

/// What every manifest takes from the workspace, so that it is said once.
const INHERITED: &[(&str, &str)] = &[
    ("package", "version"),
    ("package", "edition"),
    ("package", "rust-version"),
    ("package", "license"),
    ("lints", ""),
];

// === What the rules are made of ===

/// The rules for one kind of member.
#[derive(Clone, Copy, Debug)]
struct Role {
    /// The rule in a sentence, for whoever breaks it.
    law: &'static str,
    /// All that it may depend on; anything when there is no list.
    may: Option<&'static [May]>,
}

/// One thing that may be depended on.
#[derive(Clone, Copy, Debug)]
struct May {
    name: &'static str,
    when: When,
    #[expect(dead_code, reason = "it is for the reader of the table")]
    why: &'static str,
}

#[derive(Clone, Copy, Debug)]
enum When {
    Always,
    Optional,
    Target(&'static str),
}

const fn always(name: &'static str, why: &'static str) -> May {
    let when = When::Always;
    May { name, when, why }
}

const fn optional(name: &'static str, why: &'static str) -> May {
    let when = When::Optional;
    May { name, when, why }
}

const fn under(target: &'static str, name: &'static str, why: &'static str) -> May {
    let when = When::Target(target);
    May { name, when, why }
}

/// A member and what it depends on outside of tests.
#[derive(Debug)]
struct Member {
    name: String,
    edges: Vec<Edge>,
}

#[derive(Debug)]
struct Edge {
    to: String,
    optional: bool,
    target: Option<String>,
}

// === The step ===

/// Checks the members, their manifests, and the files of the checkout.
pub(crate) fn step(workspace: &Workspace) -> Outcome {
    let packages = workspace.members();
    let members: Vec<_> = packages.iter().map(|package| member(package)).collect();
    let mut faults = check(&members);
    for package in &packages {
        let path = package.manifest_path.as_std_path();
        let manifest = fs::read_to_string(path)
            .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
        faults.extend(own_words(&package.name, &manifest));
    }
    let (in_files, count) = files::check()?;
    faults.extend(in_files);

    for fault in &faults {
        println!("{fault}");
    }
    match faults.len() {
        0 => Ok(format!("{} members, {count} files", members.len())),
        1 => Err("1 rule is broken, shown above".to_owned()),
        many => Err(format!("{many} rules are broken, shown above")),
    }
}

fn member(package: &Package) -> Member {
    let edges = package
        .dependencies
        .iter()
        .filter(|dependency| dependency.kind != DependencyKind::Development)
        .map(|dependency| Edge {
            to: dependency.name.clone(),
            optional: dependency.optional,
            target: dependency.target.as_ref().map(ToString::to_string),
        });
    Member { name: package.name.to_string(), edges: edges.collect() }
}

/// Every rule that `members` break.
fn check(members: &[Member]) -> Vec<String> {
    let mut faults = Vec::new();
    for Member { name, edges } in members {
        let Some((_, role)) = MEMBERS.iter().find(|(known, _)| known == name) else {
            faults.push(format!("{name} has no rule: add it to MEMBERS in xtask/src/rules.rs"));
            continue;
        };
        let wrong = edges.iter().filter_map(|edge| Some((edge, role.refuses(edge)?)));
        faults.extend(
            wrong.map(|(edge, how)| {
                format!("{name} may not depend on {}{how}: {}", edge.to, role.law)
            }),
        );
    }
    let names: BTreeSet<_> = members.iter().map(|member| member.name.as_str()).collect();
    let gone = MEMBERS.iter().filter(|(known, _)| !names.contains(known));
    faults.extend(gone.map(|(known, _)| {
        format!("{known} is not in the workspace: take it out of MEMBERS in xtask/src/rules.rs")
    }));
    faults
}

impl Role {
    /// What is wrong with `edge`, to be said after its name.
    fn refuses(&self, edge: &Edge) -> Option<String> {
        let may = self.may?;
        let Some(may) = may.iter().find(|may| may.name == edge.to) else {
            return Some(String::new());
        };
        match may.when {
            When::Optional if !edge.optional => Some(" but behind a feature".to_owned()),
            When::Target(target) if edge.target.as_deref() != Some(target) => {
                Some(format!(" but under {target}"))
            }
            When::Always | When::Optional | When::Target(_) => None,
        }
    }
}

/// What the manifest of `name` says itself although the workspace says it.
fn own_words(name: &str, manifest: &str) -> Vec<String> {
    let inherits = |section: &str, key: &str| {
        let dotted = if key.is_empty() {
            "workspace=true".to_owned()
        } else {
            format!("{key}.workspace=true")
        };
        let table = format!("{key}={{workspace=true}}");
        lines_of(manifest, section).any(|line| line == dotted || line == table)
    };
    let own = INHERITED.iter().filter(|(section, key)| !inherits(section, key));
    own.map(|(section, key)| {
        let what = if key.is_empty() { section } else { key };
        format!("{name} does not take its {what} from the workspace")
    })
    .collect()
}

/// The lines below the heading `[section]`, without spaces and comments: as much of TOML as is asked here.
fn lines_of(manifest: &str, section: &str) -> impl Iterator<Item = String> {
    let heading = format!("[{section}]");
    manifest
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().replace(' ', ""))
        .skip_while(move |line| *line != heading)
        .skip(1)
        .take_while(|line| !line.starts_with('['))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(to: &str) -> Edge {
        Edge { to: to.to_owned(), optional: false, target: None }
    }

    fn optional(to: &str) -> Edge {
        Edge { optional: true, ..edge(to) }
    }

    fn under(target: &str, to: &str) -> Edge {
        Edge { target: Some(target.to_owned()), ..edge(to) }
    }

    /// A sound workspace in which `name` has one more edge, and what is then wrong.
    fn planted(name: &str, edge: Edge) -> Vec<String> {
        let mut edge = Some(edge);
        let members = MEMBERS.iter().map(|(known, _)| Member {
            name: (*known).to_owned(),
            edges: edge.take_if(|_| *known == name).into_iter().collect(),
        });
        let faults = check(&members.collect::<Vec<_>>());
        assert!(edge.is_none(), "no member {name}");
        faults
    }

    const PATTERNS: [&str; 6] = [
        "buttress-breaker",
        "buttress-bulkhead",
        "buttress-deadline",
        "buttress-fallback",
        "buttress-retry",
        "buttress-shed",
    ];

    #[test]
    fn a_pattern_knows_no_other_pattern() {
        for one in PATTERNS {
            for other in PATTERNS {
                let faults = planted(one, optional(other));
                let law = PATTERN.law;
                assert_eq!(faults, [format!("{one} may not depend on {other}: {law}")]);
            }
        }
    }

    #[test]
    fn a_pattern_knows_neither_tower_nor_dice_nor_http_nor_the_facade() {
        for one in PATTERNS {
            for other in ["tower", "rand", "http", "buttress-http", "buttress", "buttress-test"] {
                assert_eq!(planted(one, optional(other)).len(), 1, "{one} -> {other}");
            }
        }
    }

    #[test]
    fn loom_comes_in_under_its_flag_alone() {
        let law = PATTERN.law;
        for wrong in [edge("loom"), optional("loom"), under("cfg(loom)", "loom")] {
            assert_eq!(
                planted("buttress-retry", wrong),
                [format!(
                    "buttress-retry may not depend on loom but under cfg(buttress_loom): {law}"
                )]
            );
        }
        let right = under("cfg(buttress_loom)", "loom");
        assert_eq!(planted("buttress-retry", right), [""; 0]);
    }

    #[test]
    fn settings_from_files_are_behind_a_feature() {
        let law = PATTERN.law;
        assert_eq!(
            planted("buttress-shed", edge("serde")),
            [format!("buttress-shed may not depend on serde but behind a feature: {law}")]
        );
        assert_eq!(planted("buttress-shed", optional("serde")), [""; 0]);
    }

    #[test]
    fn core_has_no_layer() {
        for other in ["tower-layer", "tower", "tracing", "buttress-retry"] {
            assert_eq!(planted("buttress-core", edge(other)).len(), 1, "{other}");
        }
        assert_eq!(planted("buttress-core", edge("rand")), [""; 0]);
    }

    #[test]
    fn only_the_facade_knows_the_patterns_and_each_behind_a_feature() {
        for pattern in PATTERNS {
            for one in ["buttress-core", "buttress-http", "buttress-test"] {
                assert_eq!(planted(one, optional(pattern)).len(), 1, "{one} -> {pattern}");
            }
            assert_eq!(planted("buttress", edge(pattern)).len(), 1, "{pattern}");
            assert_eq!(planted("buttress", optional(pattern)), [""; 0]);
        }
    }

    #[test]
    fn what_knows_a_client_is_behind_a_feature() {
        for client in ["h2", "hyper", "hyper-util", "reqwest", "tonic"] {
            assert_eq!(planted("buttress-http", edge(client)).len(), 1, "{client}");
            assert_eq!(planted("buttress-http", optional(client)), [""; 0]);
        }
        assert_eq!(planted("buttress-http", optional("axum")).len(), 1);
    }

    #[test]
    fn examples_and_tests_may_depend_on_everything() {
        for one in ["buttress-examples", "buttress-tests"] {
            for other in ["tower", "rand", "buttress", "buttress-retry", "hyper"] {
                assert_eq!(planted(one, edge(other)), [""; 0], "{one} -> {other}");
            }
        }
    }

    #[test]
    fn a_crate_without_a_rule_is_refused_and_so_is_a_rule_without_a_crate() {
        let known = MEMBERS.iter().map(|(name, _)| *name);
        let names = known.filter(|name| *name != "xtask").chain(["buttress-new"]);
        let members = names.map(|name| Member { name: name.to_owned(), edges: Vec::new() });
        assert_eq!(
            check(&members.collect::<Vec<_>>()),
            [
                "buttress-new has no rule: add it to MEMBERS in xtask/src/rules.rs",
                "xtask is not in the workspace: take it out of MEMBERS in xtask/src/rules.rs",
            ]
        );
    }

    const SOUND: &str = "\
[package]
name = \"a\"
version.workspace = true
edition.workspace = true # once
rust-version = { workspace = true }
license.workspace = true

[lints]
workspace = true
";

    #[test]
    fn what_the_workspace_says_is_said_once() {
        assert_eq!(own_words("a", SOUND), [""; 0]);
        for (line, own, what) in [
            ("edition.workspace = true", "edition = \"2021\"", "edition"),
            ("license.workspace = true", "", "license"),
            ("[lints]\nworkspace = true", "", "lints"),
            ("[lints]\nworkspace = true", "[lints.rust]\nunsafe_code = \"allow\"", "lints"),
            ("[lints]\nworkspace = true", "[lints]\n[badges]\nworkspace = true", "lints"),
            ("[lints]\nworkspace = true", "# [lints]\n# workspace = true", "lints"),
        ] {
            let manifest = SOUND.replace(line, own);
            assert_ne!(manifest, SOUND, "{line}");
            assert_eq!(
                own_words("a", &manifest),
                [format!("a does not take its {what} from the workspace")]
            );
        }
    }
}
