//! From arguments to their fingerprint: whether two calls of one intent ask for the same thing.
//!
//! Binding are all arguments but those that the policy's identity names (they are in the key) and
//! those declared free text. Beside the fingerprint stand short digests of each binding member, so
//! that a later mismatch can name what differs without the arguments having been kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use super::canonical_json::{Json, Pointer};
use super::identity::{Call, HashInput, HexError, Key, KeyBasis, Recipe, bytes_from_hex};

/// The hash of the tool and its binding arguments, written as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint with these bytes, as a store kept them.
    pub const fn from_bytes(bytes: [u8; 32]) -> Fingerprint {
        Fingerprint(bytes)
    }

    /// The bytes of the fingerprint.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// Reads only the form that `Display` writes.
impl FromStr for Fingerprint {
    type Err = HexError;

    fn from_str(text: &str) -> Result<Fingerprint, HexError> {
        bytes_from_hex(text).map(Fingerprint)
    }
}

/// What is remembered of a call's arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprinted {
    /// Decides whether the binding arguments are the same.
    pub fingerprint: Fingerprint,
    /// Tells what differs. It decides nothing: its digests are short.
    pub digests: ArgumentDigests,
}

/// The fingerprint of a call under a recipe, and under free text that the call itself declares.
///
/// `key` salts the digests, so that equal values of two intents do not look equal in the store.
pub fn fingerprint(
    recipe: &Recipe,
    extra_free_text: &[Pointer],
    call: &Call<'_>,
    key: &Key,
    basis: KeyBasis,
) -> Fingerprinted {
    let mut not_binding = [&recipe.free_text, extra_free_text].concat();
    let free_text: BTreeSet<&Pointer> = not_binding.iter().collect();
    let free_text = free_text.into_iter().filter_map(|pointer| {
        let value = call.arguments.pointer(pointer)?;
        Some((pointer.to_string(), value.clone()))
    });
    let free_text = Json::Object(free_text.collect());

    if basis == KeyBasis::Policy {
        not_binding.extend(recipe.identity.iter().map(|place| place.pointer.clone()));
    }
    let binding = call.arguments.without(&not_binding);

    let input = HashInput::new(recipe.hash_version, "/fingerprint").text(call.tool).json(&binding);
    Fingerprinted {
        fingerprint: Fingerprint(input.digest()),
        digests: ArgumentDigests::new(recipe.hash_version, key, &free_text, &binding),
    }
}

/// Short digests of a call's free text and of each binding member, to be kept with its row.
///
/// They cover the first [`ArgumentDigests::MEMBERS_MAX`] top-level members by name, without those
/// whose name is longer than [`ArgumentDigests::NAME_BYTES_MAX`]: enough to name what differs in
/// any ordinary call, and a bound on what a row can grow to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArgumentDigests {
    free_text: [u8; 8],
    members: BTreeMap<String, [u8; 4]>,
}

impl ArgumentDigests {
    /// How many members are covered at most.
    pub const MEMBERS_MAX: usize = 64;

    /// How long the name of a covered member is at most; its length is one byte.
    pub const NAME_BYTES_MAX: usize = 255;

    fn new(hash_version: u32, key: &Key, free_text: &Json, binding: &Json) -> ArgumentDigests {
        let input = |purpose| HashInput::new(hash_version, purpose).text(&key.to_string());
        let mut members = BTreeMap::new();
        if let Json::Object(object) = binding {
            let short = object.iter().filter(|(name, _)| name.len() <= Self::NAME_BYTES_MAX);
            let sorted: BTreeMap<&str, &Json> = short.collect();
            for (name, value) in sorted.into_iter().take(Self::MEMBERS_MAX) {
                let digest = input("/member").text(name).json(value).digest();
                members.insert(name.to_owned(), beginning(digest));
            }
        }
        let free_text = beginning(input("/free-text").json(free_text).digest());
        ArgumentDigests { free_text, members }
    }

    /// The top-level members whose values differ, as far as they are covered; both sides must be
    /// calls of one intent under one recipe.
    pub fn differing(&self, other: &ArgumentDigests) -> Vec<Pointer> {
        let names: BTreeSet<&String> = self.members.keys().chain(other.members.keys()).collect();
        let differs = |name: &&String| match (self.members.get(*name), other.members.get(*name)) {
            (Some(mine), Some(theirs)) => mine != theirs,
            (Some(_), None) => other.covers(name),
            (None, _) => self.covers(name),
        };
        names.into_iter().filter(differs).map(|name| Pointer::member(name)).collect()
    }

    /// Whether the free text differs, under the same conditions.
    pub fn free_text_differs(&self, other: &ArgumentDigests) -> bool {
        self.free_text != other.free_text
    }

    /// Whether a member of this name would be here if the call had it.
    fn covers(&self, name: &str) -> bool {
        let last = self.members.last_key_value();
        self.members.len() < Self::MEMBERS_MAX || last.is_some_and(|(last, _)| name < last.as_str())
    }

    /// The bytes to store: 8 of the free text, then of each member the length of its name in one
    /// byte, its name, and 4 of its value.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.free_text.to_vec();
        for (name, digest) in &self.members {
            // No longer than NAME_BYTES_MAX, which is all a byte can say.
            bytes.push(name.len() as u8);
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(digest);
        }
        bytes
    }

    /// Reads what [`ArgumentDigests::encode`] wrote, and nothing else.
    pub fn decode(bytes: &[u8]) -> Result<ArgumentDigests, DigestsError> {
        let (free_text, mut rest) = bytes.split_first_chunk().ok_or(DigestsError)?;
        let mut members = BTreeMap::<String, [u8; 4]>::new();
        while let Some((&length, after)) = rest.split_first() {
            let (name, after) = after.split_at_checked(usize::from(length)).ok_or(DigestsError)?;
            let (digest, after) = after.split_first_chunk().ok_or(DigestsError)?;
            let name = str::from_utf8(name).map_err(|_| DigestsError)?;
            if members.last_key_value().is_some_and(|(last, _)| last.as_str() >= name) {
                return Err(DigestsError);
            }
            members.insert(name.to_owned(), *digest);
            rest = after;
        }
        if members.len() > Self::MEMBERS_MAX {
            return Err(DigestsError);
        }
        Ok(ArgumentDigests { free_text: *free_text, members })
    }
}

/// The stored bytes are not argument digests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the bytes are not argument digests")]
pub struct DigestsError;

fn beginning<const N: usize>(digest: [u8; 32]) -> [u8; N] {
    let mut beginning = [0; N];
    beginning.copy_from_slice(&digest[..N]);
    beginning
}

#[cfg(test)]
mod tests;
