use std::{
    borrow::Borrow,
    collections::{HashMap, hash_map::RandomState},
    fmt,
    hash::{BuildHasher, BuildHasherDefault, Hash, Hasher},
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed},
        fence,
    },
};

use buttress_core::{InvalidSetting, KeyOf, edge};
use tokio::time::Instant;

use crate::{
    Breaker, Select,
    breaker::Kind,
    settings::BreakerSettings,
    stats::Stats,
    sync::{Arc, Mutex, Swap, lock},
};

/// How many breakers are kept unless it is said otherwise: more than most clients have callees, and
/// about 5 MB when all are there.
const CAPACITY: usize = 10_000;
/// How many breakers are looked at to find one that may go. It bounds what a request with a new key costs,
/// when most may not.
const LOOKED_AT: usize = 128;
/// Among how many that may go the one that was unused for longest goes.
const CANDIDATES: usize = 8;
/// How many pairs of places there are at most for what is found past the lock. Of a hundred callees in use one or none
/// finds both taken, and all places take 8 kB.
const LATELY: usize = 512;

/// One breaker for each callee, told apart by the key of a request.
///
/// With one breaker for all, one bad host cuts off the good ones. And with one for each, whoever chooses
/// the hosts chooses how much memory they take. So the map is bounded. When it is full, a new key takes
/// the place of one that was not used for long, whose breaker is closed and has no calls in flight. One
/// that is open or half-open stays, until nobody has asked it for ten times the longest open time. So
/// does one that is forced, and one that somebody else has a handle to.
///
/// When none may go, a new key is **not protected**: its calls are let through by a breaker that is
/// shared and [forced closed](Breaker::force_closed), the [overflow](Self::overflow). Its `stats()` tell
/// how many these are. One that opens would let the many bad hosts that fill the map cut off the good one
/// that comes last; [reset](Breaker::reset) it if you would rather have that.
///
/// A clone is another handle to the same map.
///
/// # Examples
///
/// ```
/// use buttress_breaker::{Breakers, BreakerLayer, BreakerSettings, Select, State};
///
/// struct Request {
///     host: String,
/// }
///
/// let breakers = Breakers::new(BreakerSettings::default(), |request: &Request| request.host.clone())?;
/// let layer = BreakerLayer::new(breakers.clone());
///
/// let request = Request { host: "orders".into() };
/// breakers.select(&request).force_open();
/// assert_eq!(breakers.get("orders").unwrap().state(), State::Open);
/// assert!(breakers.get("stock").is_none());
/// # Ok::<(), buttress_core::InvalidSetting>(())
/// ```
///
/// A closure makes a key for each request. Write a [`KeyOf`] to compare it where it lies; then a breaker
/// that is there is found without an allocation.
///
/// What is yours runs without a lock, and may use these breakers itself: the key function, the label, and all
/// that keys do. Threads may compare one key at the same time.
pub struct Breakers<K, F> {
    shared: Arc<Shared<K>>,
    key_of: F,
    label: Option<fn(&K) -> String>,
}

struct Shared<K> {
    kind: std::sync::Arc<Kind>,
    capacity: usize,
    hashes: RandomState,
    map: Mutex<Map<K>>,
    lately: Lately<K>,
    /// Counts look-ups in the map, to tell which entry was used last. One that is found past the lock was used as of
    /// the last of them: which of two such came later is not known until there is another.
    tick: AtomicU64,
    overflow: Breaker,
}

/// Entries that were used lately, by the hash of their key, to be found without a lock and without a word that
/// threads write: else two of them, with one key or with two, are slower than one.
///
/// What is in here is in the map as well. It goes from here first, and from the map only when that is seen to have
/// the only handle: so there is no second breaker for its key as long as the first can be found.
struct Lately<K>(Box<[[Swap<Kept<K>>; 2]]>);

/// Entries by the hash of their key. A hash map with the keys in it could not be asked by what is no key
/// yet.
struct Map<K> {
    /// The newest entry of each hash.
    heads: HashMap<u64, u32, BuildHasherDefault<AsItIs>>,
    entries: Vec<Entry<K>>,
    /// Counts entries that were ever made, to tell which are new.
    made: u64,
    /// Where the search for one that may go goes on.
    hand: u32,
    /// What those that went had counted.
    gone: Stats,
}

struct Entry<K> {
    kept: Arc<Kept<K>>,
    /// Its number among all that were ever made, from 1 on.
    born: u64,
    /// The next older entry of the same hash.
    next: Option<u32>,
}

/// What is looked at without the lock of the map. Comparing keys is the user's, and may take long or ask the
/// map again.
struct Kept<K> {
    key: K,
    hash: u64,
    breaker: Breaker,
    /// The tick of the last look-up that found it.
    used: AtomicU64,
}

/// An entry that has the hash, and so most likely the key. It keeps its place as long as this is there.
struct Candidate<K> {
    kept: Arc<Kept<K>>,
    place: u32,
    born: u64,
}

/// Hashes what is a hash already.
#[derive(Default)]
struct AsItIs(u64);

// === impl Breakers ===

impl<K, F> Breakers<K, F> {
    /// At most ten thousand breakers with these settings.
    ///
    /// # Errors
    ///
    /// Names the setting that cannot work.
    pub fn new(settings: BreakerSettings, key_of: F) -> Result<Self, InvalidSetting> {
        Self::with_capacity(CAPACITY, settings, key_of)
    }

    /// At most so many breakers with these settings.
    ///
    /// # Errors
    ///
    /// Names the setting that cannot work: a capacity of 0, or above 10 000 000, cannot.
    pub fn with_capacity(
        capacity: usize,
        settings: BreakerSettings,
        key_of: F,
    ) -> Result<Self, InvalidSetting> {
        settings.check()?;
        if !(1..=10_000_000).contains(&capacity) {
            return Err(InvalidSetting::new("capacity", "must be 1 to 10000000"));
        }
        let kind = Kind::new(settings);
        let overflow = Breaker::unprotected(kind.clone(), "(overflow)");
        let (hashes, map) = (RandomState::new(), Mutex::new(Map::new()));
        let (lately, tick) = (Lately::new(capacity), AtomicU64::new(0));
        let shared = Shared { kind, capacity, hashes, map, lately, tick, overflow };
        Ok(Self { shared: Arc::new(shared), key_of, label: None })
    }

    /// Names each breaker in events by its key, as the field `key`.
    ///
    /// It is called once for each breaker that is made. Keys come from requests: do not make a metric's
    /// label of them.
    #[must_use]
    pub fn label(mut self, label: fn(&K) -> String) -> Self {
        self.label = Some(label);
        self
    }

    /// The breaker of that key, if there is one.
    #[must_use]
    pub fn get<Q>(&self, key: &Q) -> Option<Breaker>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.shared.hashes.hash_one(key);
        let is_it = |kept: &K| kept.borrow() == key;
        self.shared.find_lately(hash, is_it).or_else(|| self.shared.find(hash, 0, is_it).ok())
    }

    /// All breakers with their keys, in no order.
    ///
    /// A breaker that you have a handle to is not replaced: do not keep it for long.
    #[must_use]
    pub fn snapshot(&self) -> Vec<(K, Breaker)>
    where
        K: Clone,
    {
        let kept: Vec<_> = {
            let map = lock(&self.shared.map);
            map.entries.iter().map(|entry| entry.kept.clone()).collect()
        };
        kept.iter().map(|kept| (kept.key.clone(), kept.breaker.clone())).collect()
    }

    /// What became of all calls, whatever their key: also of those whose breaker was replaced, and of those
    /// that found no place.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let map = lock(&self.shared.map);
        let mut sum = map.gone;
        sum += self.shared.overflow.stats();
        for entry in &map.entries {
            sum += entry.kept.breaker.stats();
        }
        sum
    }

    /// The breaker of those that find no place.
    #[must_use]
    pub fn overflow(&self) -> &Breaker {
        &self.shared.overflow
    }

    /// How many breakers there are.
    #[must_use]
    pub fn len(&self) -> usize {
        lock(&self.shared.map).entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many there can be.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.shared.capacity
    }

    /// The settings that they are made with.
    #[must_use]
    pub fn settings(&self) -> &BreakerSettings {
        &self.shared.kind.settings
    }

    fn find_or_make<Req: ?Sized>(&self, request: &Req) -> Breaker
    where
        F: KeyOf<Req, Key = K>,
    {
        let mut state = self.shared.hashes.build_hasher();
        self.key_of.hash(request, &mut state);
        let hash = state.finish();
        let is_it = |key: &K| self.key_of.matches(request, key);
        match self.shared.find_lately(hash, is_it) {
            Some(breaker) => breaker,
            None => self.find_or_make_locked(request, hash, is_it),
        }
    }

    #[inline(never)]
    fn find_or_make_locked<Req: ?Sized>(
        &self,
        request: &Req,
        hash: u64,
        is_it: impl Fn(&K) -> bool,
    ) -> Breaker
    where
        F: KeyOf<Req, Key = K>,
    {
        let (mut seen, mut new) = (0, None);
        loop {
            match self.shared.find(hash, seen, &is_it) {
                Ok(breaker) => return breaker,
                Err(newest) => seen = newest,
            }
            let new = new.get_or_insert_with(|| self.make(request, hash));
            let now = edge::now();
            let (breaker, _dropped_unlocked) = {
                let mut map = lock(&self.shared.map);
                if map.has_newer(hash, seen) {
                    // Somebody was faster, perhaps with this key.
                    continue;
                }
                if map.entries.len() < self.shared.capacity {
                    map.push(new.clone());
                    (new.breaker.clone(), None)
                } else if let Some(place) = map.place(now, &self.shared.lately) {
                    let old = map.replace(place, new.clone());
                    (new.breaker.clone(), Some(old))
                } else {
                    (self.shared.overflow.clone(), None)
                }
            };
            return breaker;
        }
    }

    fn make<Req: ?Sized>(&self, request: &Req, hash: u64) -> Arc<Kept<K>>
    where
        F: KeyOf<Req, Key = K>,
    {
        let key = self.key_of.key(request);
        let label = self.label.map(|label| label(&key).into_boxed_str());
        let breaker = Breaker::unchecked(self.shared.kind.clone(), label);
        let used = AtomicU64::new(self.shared.tick.load(Relaxed));
        Arc::new(Kept { key, hash, breaker, used })
    }
}

impl<Req: ?Sized, K, F> Select<Req> for Breakers<K, F>
where
    F: KeyOf<Req, Key = K>,
{
    fn select(&self, request: &Req) -> Breaker {
        self.find_or_make(request)
    }
}

impl<K, F: Clone> Clone for Breakers<K, F> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), key_of: self.key_of.clone(), label: self.label }
    }
}

impl<K, F> fmt::Debug for Breakers<K, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breakers")
            .field("len", &self.len())
            .field("capacity", &self.shared.capacity)
            .field("settings", &self.shared.kind.settings)
            .finish_non_exhaustive()
    }
}

// === impl Shared ===

impl<K> Shared<K> {
    /// The breaker whose key it is, if that was used lately.
    #[inline]
    fn find_lately(&self, hash: u64, is_it: impl Fn(&K) -> bool) -> Option<Breaker> {
        let found = |kept: Option<&Arc<Kept<K>>>| {
            let kept = kept.filter(|kept| kept.hash == hash && is_it(&kept.key))?;
            let tick = self.tick.load(Relaxed);
            // Not each time: a word that is only read stays with each thread.
            if kept.used.load(Relaxed) < tick {
                kept.used.store(tick, Relaxed);
            }
            Some(kept.breaker.clone())
        };
        self.lately.places(hash).iter().find_map(|place| place.read(found))
    }

    /// The breaker whose key it is, among the entries of the hash that were born after `seen`. If there is
    /// none, when the newest of them was born: all until then are seen.
    ///
    /// They are taken out one by one, the newest first, and compared without the lock.
    fn find(&self, hash: u64, seen: u64, is_it: impl Fn(&K) -> bool) -> Result<Breaker, u64> {
        let tick = self.tick.fetch_add(1, Relaxed) + 1;
        let mut newest = None;
        let mut last = None;
        loop {
            // A statement by itself, so that the lock is free after it.
            let next = lock(&self.map).candidate(hash, last.as_ref());
            let Some(candidate) = next.filter(|candidate| candidate.born > seen) else {
                return Err(newest.unwrap_or(seen));
            };
            if is_it(&candidate.kept.key) {
                let before = candidate.kept.used.fetch_max(tick, Relaxed);
                self.lately.put(&candidate.kept, before);
                return Ok(candidate.kept.breaker.clone());
            }
            newest.get_or_insert(candidate.born);
            last = Some(candidate);
        }
    }
}

// === impl Lately ===

impl<K> Lately<K> {
    fn new(capacity: usize) -> Self {
        let pairs = capacity.next_power_of_two().min(LATELY);
        Self((0..pairs).map(|_| [Swap::empty(), Swap::empty()]).collect())
    }

    #[inline]
    fn places(&self, hash: u64) -> &[Swap<Kept<K>>; 2] {
        &self.0[hash as usize & (self.0.len() - 1)]
    }

    /// Puts in what is used now and was used `before`, if one of its places is empty, or has what was not used since
    /// then. So those that share a place and take turns do not push each other out each time, which costs more than
    /// the lock.
    fn put(&self, kept: &Arc<Kept<K>>, before: u64) {
        let used = |place: &Swap<Kept<K>>| {
            place.read(|there| there.map_or(0, |there| there.used.load(Relaxed)))
        };
        let [one, other] = self.places(kept.hash);
        let place = if used(one) <= used(other) { one } else { other };
        if used(place) < before {
            place.store(Some(kept.clone()));
        }
    }

    /// Takes it out, wherever it is in.
    fn take_out(&self, kept: &Arc<Kept<K>>) {
        for place in self.places(kept.hash) {
            if place.read(|there| there.is_some_and(|there| Arc::ptr_eq(there, kept))) {
                // If another has come in since, that one comes again when it is used.
                place.store(None);
            }
        }
    }
}

// === impl Map ===

impl<K> Map<K> {
    fn new() -> Self {
        let (heads, entries) = Default::default();
        Self { heads, entries, made: 0, hand: 0, gone: Stats::default() }
    }

    /// The newest entry of the hash, or the next older one than `last`. What came into the chain after `last` was
    /// taken is before it, and not met on the way.
    fn candidate(&self, hash: u64, last: Option<&Candidate<K>>) -> Option<Candidate<K>> {
        let place = match last {
            None => *self.heads.get(&hash)?,
            Some(last) => self.entries[last.place as usize].next?,
        };
        let Entry { kept, born, .. } = &self.entries[place as usize];
        Some(Candidate { kept: kept.clone(), place, born: *born })
    }

    /// Whether the hash has an entry that was born after `seen`.
    fn has_newer(&self, hash: u64, seen: u64) -> bool {
        self.heads.get(&hash).is_some_and(|head| self.entries[*head as usize].born > seen)
    }

    fn push(&mut self, kept: Arc<Kept<K>>) {
        let place = u32::try_from(self.entries.len()).expect("a capacity fits in 32 bits");
        let entry = self.link(place, kept);
        self.entries.push(entry);
    }

    /// Makes an entry for that place, the first in the chain of its hash.
    fn link(&mut self, place: u32, kept: Arc<Kept<K>>) -> Entry<K> {
        self.made += 1;
        let next = self.heads.insert(kept.hash, place);
        Entry { kept, born: self.made, next }
    }

    /// The entry that a new one may take the place of.
    fn place(&mut self, now: Instant, lately: &Lately<K>) -> Option<u32> {
        let mut oldest: Option<(u32, u64)> = None;
        let mut candidates = 0;
        for _ in 0..self.entries.len().min(LOOKED_AT) {
            self.hand = (self.hand + 1) % self.entries.len() as u32;
            let entry = &self.entries[self.hand as usize];
            if !entry.may_be_forgotten(now, lately) {
                continue;
            }
            let used = entry.kept.used.load(Relaxed);
            if oldest.is_none_or(|(_, oldest)| used < oldest) {
                oldest = Some((self.hand, used));
            }
            candidates += 1;
            if candidates == CANDIDATES {
                break;
            }
        }
        oldest.map(|(place, _)| place)
    }

    /// Gives its place to a new one.
    fn replace(&mut self, place: u32, kept: Arc<Kept<K>>) -> Entry<K> {
        self.unlink(place);
        let new = self.link(place, kept);
        let old = std::mem::replace(&mut self.entries[place as usize], new);
        let mut stats = old.kept.breaker.stats();
        stats.window = Default::default();
        self.gone += stats;
        old
    }

    /// Takes an entry out of the chain of its hash.
    fn unlink(&mut self, place: u32) {
        let Entry { kept, next: after, .. } = &self.entries[place as usize];
        let (hash, after) = (kept.hash, *after);
        let mut before = None;
        let mut at = self.heads[&hash];
        while at != place {
            before = Some(at);
            at = self.entries[at as usize].next.expect("an entry is in the chain of its hash");
        }
        match (before, after) {
            (Some(before), after) => self.entries[before as usize].next = after,
            (None, Some(after)) => {
                self.heads.insert(hash, after);
            }
            (None, None) => {
                self.heads.remove(&hash);
            }
        }
    }
}

// === impl Entry ===

impl<K> Entry<K> {
    /// Whether nobody looks at it or has its breaker, and nothing that matters is lost with it. If so, it is found under
    /// the lock alone.
    fn may_be_forgotten(&self, now: Instant, lately: &Lately<K>) -> bool {
        // One that is in use is not taken out of where it is found fast.
        if !self.kept.breaker.may_be_forgotten(now) {
            return false;
        }
        lately.take_out(&self.kept);
        let is_alone = Arc::strong_count(&self.kept) == 1;
        // Whoever has let go of it may have taken its breaker before: that is seen after this.
        fence(Acquire);
        is_alone && self.kept.breaker.may_be_forgotten(now)
    }
}

// === impl AsItIs ===

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only whole hashes are hashed");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// What one entry takes beside its breaker, with the two counters of its `Arc`.
#[cfg(all(test, target_pointer_width = "64", not(buttress_loom)))]
pub(crate) const fn entry_bytes<K>() -> usize {
    size_of::<Entry<K>>() + size_of::<Kept<K>>() + 2 * size_of::<usize>()
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use super::*;

    fn kept(key: u32, used: u64) -> Arc<Kept<u32>> {
        let breaker = Breaker::unchecked(Kind::new(BreakerSettings::default()), None);
        Arc::new(Kept { key, hash: 0, breaker, used: AtomicU64::new(used) })
    }

    fn keys(lately: &Lately<u32>) -> [Option<u32>; 2] {
        let [one, other] = lately.places(0);
        [one, other].map(|place| place.read(|kept| kept.map(|kept| kept.key)))
    }

    #[test]
    fn those_that_take_turns_do_not_push_each_other_out() {
        let lately = Lately::new(1);
        let all = [kept(0, 1), kept(1, 2), kept(2, 3)];
        let mut tick = 3;
        for turn in 0..10 {
            for kept in &all {
                tick += 1;
                let before = kept.used.swap(tick, Relaxed);
                lately.put(kept, before);
            }
            assert_eq!(keys(&lately), [Some(0), Some(1)], "turn {turn}");
        }
        // As soon as one of them is not used any more, its place is another's.
        for kept in [&all[0], &all[2], &all[0], &all[2]] {
            tick += 1;
            let before = kept.used.swap(tick, Relaxed);
            lately.put(kept, before);
        }
        assert_eq!(keys(&lately), [Some(0), Some(2)]);
        lately.take_out(&all[1]);
        lately.take_out(&all[0]);
        assert_eq!(keys(&lately), [None, Some(2)]);
    }
}
