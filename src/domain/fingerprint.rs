//! From arguments to their fingerprint: whether two calls of one intent ask for the same thing.
//!
//! Binding are all arguments but those that the policy's identity names (they are in the key) and
//! those declared free text. Beside the fingerprint stand short digests of each binding member, so
//! that a later mismatch can name what differs without the arguments having been kept.

use std::borrow::Cow;
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
        f.write_str(const_hex::Buffer::<32>::new().format(&self.0))
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
    let mut not_binding: Vec<Pointer> = [&recipe.free_text, extra_free_text].concat();
    let free_text: BTreeSet<&Pointer> = not_binding.iter().collect();
    let free_text = free_text.into_iter().filter_map(|pointer| {
        let value = call.arguments.pointer(pointer)?;
        Some((pointer.to_string(), value.clone()))
    });
    let free_text = Json::Object(free_text.collect());

    if basis == KeyBasis::Policy {
        not_binding.extend(recipe.identity.iter().map(|place| place.pointer.clone()));
    }
    let binding = if not_binding.is_empty() {
        Cow::Borrowed(call.arguments)
    } else {
        Cow::Owned(call.arguments.without(&not_binding))
    };

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
///
/// The bytes are 8 of the free text, then of each member the length of its name in one byte, its
/// name, and 4 of its value, in the order of the names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArgumentDigests(Vec<u8>);

const FREE_TEXT_BYTES: usize = 8;
const MEMBER_BYTES: usize = 4;

impl ArgumentDigests {
    /// How many members are covered at most.
    pub const MEMBERS_MAX: usize = 64;

    /// How long the name of a covered member is at most; its length is one byte.
    pub const NAME_BYTES_MAX: usize = 255;

    fn new(hash_version: u32, key: &Key, free_text: &Json, binding: &Json) -> ArgumentDigests {
        let key = key.to_string();
        let input = |purpose| HashInput::new(hash_version, purpose).text(&key);
        let free_text = input("/free-text").json(free_text).digest();
        let mut bytes = free_text[..FREE_TEXT_BYTES].to_vec();
        if let Json::Object(object) = binding {
            let of_member = input("/member");
            let short = object.iter().filter(|(name, _)| name.len() <= Self::NAME_BYTES_MAX);
            let sorted: BTreeMap<&str, &Json> = short.collect();
            for (name, value) in sorted.into_iter().take(Self::MEMBERS_MAX) {
                let digest = of_member.clone().text(name).json(value).digest();
                // No longer than NAME_BYTES_MAX, which is all a byte can say.
                bytes.push(name.len() as u8);
                bytes.extend_from_slice(name.as_bytes());
                bytes.extend_from_slice(&digest[..MEMBER_BYTES]);
            }
        }
        ArgumentDigests(bytes)
    }

    /// The top-level members whose values differ, as far as they are covered; both sides must be
    /// calls of one intent under one recipe.
    pub fn differing(&self, other: &ArgumentDigests) -> Vec<Pointer> {
        let (mine, theirs) = (self.members(), other.members());
        let names: BTreeSet<&str> = mine.keys().chain(theirs.keys()).copied().collect();
        let differs = |name: &&str| match (mine.get(*name), theirs.get(*name)) {
            (Some(mine), Some(theirs)) => mine != theirs,
            (Some(_), None) => covers(&theirs, name),
            (None, _) => covers(&mine, name),
        };
        names.into_iter().filter(differs).map(Pointer::member).collect()
    }

    /// Whether the free text differs, under the same conditions.
    pub fn free_text_differs(&self, other: &ArgumentDigests) -> bool {
        self.0[..FREE_TEXT_BYTES] != other.0[..FREE_TEXT_BYTES]
    }

    fn members(&self) -> BTreeMap<&str, &[u8]> {
        split(&self.0).expect("checked when it was made")
    }

    /// The bytes to store.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads what [`ArgumentDigests::as_bytes`] gave, and nothing else.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<ArgumentDigests, DigestsError> {
        split(&bytes)?;
        Ok(ArgumentDigests(bytes))
    }
}

/// Whether a member of this name would be among them if the call had it.
fn covers(members: &BTreeMap<&str, &[u8]>, name: &str) -> bool {
    let last = members.last_key_value();
    members.len() < ArgumentDigests::MEMBERS_MAX || last.is_some_and(|(last, _)| name < *last)
}

fn split(bytes: &[u8]) -> Result<BTreeMap<&str, &[u8]>, DigestsError> {
    let (_, mut rest) = bytes.split_at_checked(FREE_TEXT_BYTES).ok_or(DigestsError)?;
    let mut members = BTreeMap::<&str, &[u8]>::new();
    while let Some((&length, after)) = rest.split_first() {
        let (name, after) = after.split_at_checked(usize::from(length)).ok_or(DigestsError)?;
        let (digest, after) = after.split_at_checked(MEMBER_BYTES).ok_or(DigestsError)?;
        let name = str::from_utf8(name).map_err(|_| DigestsError)?;
        if members.last_key_value().is_some_and(|(last, _)| *last >= name) {
            return Err(DigestsError);
        }
        members.insert(name, digest);
        rest = after;
    }
    if members.len() > ArgumentDigests::MEMBERS_MAX {
        return Err(DigestsError);
    }
    Ok(members)
}

/// The stored bytes are not argument digests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the bytes are not argument digests")]
pub struct DigestsError;

#[cfg(test)]
mod tests;
