//! From a call to its key: which calls are the same intent.
//!
//! A key is the SHA-256 of the canonical text of an array whose first member is a version tag, then
//! namespace, basis and the parts, each its own member: nothing is ever concatenated, so no joining
//! character can make two calls meet. `proto/vectors/README.md` is the recipe for other languages.
//!
//! Names (namespace, tool, run, step, idempotency key) are hashed byte by byte, as they are compared
//! everywhere else; business ids and values from the arguments are NFC.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::str::FromStr;

use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::canonical_json::{Json, Members, Number, Pointer, nfc, write_string};

mod error;

pub use error::{IdentityError, TextFault};

/// The version of the recipe that new rows are hashed under. It is part of every hash.
pub const HASH_VERSION: u32 = 1;

/// The longest idempotency key, and the longest name of a business id.
pub const NAME_BYTES_MAX: usize = 255;

/// The longest value of a business id.
pub const BUSINESS_VALUE_BYTES_MAX: usize = 1024;

/// The most business ids of one call. They name an action; they do not repeat its arguments.
pub const BUSINESS_IDS_MAX: usize = 32;

/// Which intent a call belongs to, written as 64 lower-case hexadecimal digits.
///
/// The namespace is hashed into it, so the keys of two tenants never meet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key([u8; 32]);

impl Key {
    /// The key with these bytes, as a store kept them.
    pub const fn from_bytes(bytes: [u8; 32]) -> Key {
        Key(bytes)
    }

    /// The bytes of the key.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(const_hex::Buffer::<32>::new().format(&self.0))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

/// Reads only the form that `Display` writes, so that a key has one spelling.
impl FromStr for Key {
    type Err = HexError;

    fn from_str(text: &str) -> Result<Key, HexError> {
        bytes_from_hex(text).map(Key)
    }
}

/// The text is not the hexadecimal form of 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected 64 lower-case hexadecimal digits")]
pub struct HexError;

pub(super) fn bytes_from_hex(text: &str) -> Result<[u8; 32], HexError> {
    let mut bytes = [0; 32];
    if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err(HexError);
    }
    const_hex::decode_to_slice(text, &mut bytes).map_err(|_| HexError)?;
    Ok(bytes)
}

/// What a key was made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyBasis {
    /// The caller's own key.
    IdempotencyKey,
    /// What the action is about, said by the caller.
    BusinessIds,
    /// What the action is about, read from the arguments where the policy says.
    Policy,
    /// Run, step and all arguments: the fallback, which a reworded call escapes.
    StepArguments,
}

impl KeyBasis {
    /// Every basis.
    pub const ALL: [KeyBasis; 4] = [
        KeyBasis::IdempotencyKey,
        KeyBasis::BusinessIds,
        KeyBasis::Policy,
        KeyBasis::StepArguments,
    ];

    /// The name that is hashed, stored and shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            KeyBasis::IdempotencyKey => "IDEMPOTENCY_KEY",
            KeyBasis::BusinessIds => "BUSINESS_IDS",
            KeyBasis::Policy => "POLICY",
            KeyBasis::StepArguments => "STEP_ARGUMENTS",
        }
    }
}

/// How far an identity reaches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Once per run.
    #[default]
    Run,
    /// Once ever in the namespace, whichever run.
    Namespace,
}

/// A change that makes two spellings of an identity value one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Normalize {
    /// Blanks at both ends go. A blank is a character with Unicode's White_Space property.
    Trim,
    /// Unicode's default lower case, of the whole text and in no language.
    Lowercase,
    /// Every run of blanks becomes one space.
    CollapseWhitespace,
}

impl Normalize {
    fn apply(self, text: &str) -> String {
        match self {
            Normalize::Trim => text.trim().to_owned(),
            Normalize::Lowercase => text.to_lowercase(),
            Normalize::CollapseWhitespace => {
                let mut collapsed = String::with_capacity(text.len());
                let mut after_blank = false;
                for c in text.chars() {
                    let blank = c.is_whitespace();
                    if !blank {
                        collapsed.push(c);
                    } else if !after_blank {
                        collapsed.push(' ');
                    }
                    after_blank = blank;
                }
                collapsed
            }
        }
    }
}

/// A place in the arguments that is part of a tool's identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityPointer {
    /// Where the value stands.
    pub pointer: Pointer,
    /// What is done to its text, in this order.
    pub normalize: Vec<Normalize>,
}

/// What turns a call into a key and a fingerprint.
///
/// It is part of the policy and kept with the row as the policy version it was made under, because
/// a row can only be compared with a new call under its own recipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// The version that is hashed in.
    pub hash_version: u32,
    /// The places that name the action, each at most once; where there are any, they decide.
    pub identity: Vec<IdentityPointer>,
    /// Whether the run is part of the identity.
    pub scope: Scope,
    /// The places that may be reworded without making it another action.
    pub free_text: Vec<Pointer>,
}

/// The recipe of a tool without a policy.
impl Default for Recipe {
    fn default() -> Recipe {
        Recipe {
            hash_version: HASH_VERSION,
            identity: Vec::new(),
            scope: Scope::Run,
            free_text: Vec::new(),
        }
    }
}

/// A call as its identity sees it. An empty text is an absent one.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// The tenant.
    pub namespace: &'a str,
    /// The tool that is called.
    pub tool: &'a str,
    /// The run of the agent.
    pub run_id: &'a str,
    /// The step of the run.
    pub step_id: &'a str,
    /// The caller's own key.
    pub idempotency_key: &'a str,
    /// What the action is about, by name.
    pub business_ids: &'a BTreeMap<String, String>,
    /// The arguments of the tool.
    pub arguments: &'a Json,
}

/// The identity of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identified {
    /// Which intent it is.
    pub key: Key,
    /// What the key was made from.
    pub basis: KeyBasis,
    /// The policy's pointers won over a key or business ids that the caller sent.
    pub overridden: bool,
}

/// The key of a call under a recipe.
///
/// The policy's pointers win over what the caller sends, then the caller's key, then business ids,
/// then run, step and arguments. What the caller sends is checked even if it does not decide.
pub fn identify(recipe: &Recipe, call: &Call<'_>) -> Result<Identified, IdentityError> {
    let has_key = !call.idempotency_key.is_empty();
    let has_business_ids = !call.business_ids.is_empty();
    if has_key && has_business_ids {
        return Err(IdentityError::BothKeyAndBusinessIds);
    }
    if has_key {
        check_idempotency_key(call.idempotency_key)?;
    }
    let business_ids = checked_business_ids(call.business_ids)?;

    let input = |basis: KeyBasis| {
        HashInput::new(recipe.hash_version, "").text(call.namespace).text(basis.as_str())
    };
    let (basis, input) = if !recipe.identity.is_empty() {
        let input = input(KeyBasis::Policy).text(call.tool);
        let input = scoped(input, recipe.scope, call.run_id)?;
        (KeyBasis::Policy, input.json(&policy_values(recipe, call.arguments)?))
    } else if has_key {
        (KeyBasis::IdempotencyKey, input(KeyBasis::IdempotencyKey).text(call.idempotency_key))
    } else if has_business_ids {
        let input = input(KeyBasis::BusinessIds).text(call.tool);
        let input = scoped(input, recipe.scope, call.run_id)?;
        (KeyBasis::BusinessIds, input.json(&business_ids))
    } else if !call.run_id.is_empty() && !call.step_id.is_empty() {
        let input = input(KeyBasis::StepArguments).text(call.tool);
        let input = input.text(call.run_id).text(call.step_id);
        (KeyBasis::StepArguments, input.json(call.arguments))
    } else {
        return Err(IdentityError::NoIdentity);
    };
    Ok(Identified {
        key: Key(input.digest()),
        basis,
        overridden: basis == KeyBasis::Policy && (has_key || has_business_ids),
    })
}

/// What the downstream is given to deduplicate by: the same for all attempts of an intent, or, with
/// an attempt, for that one only.
pub fn downstream_digest(key: &Key, attempt: Option<u32>, hash_version: u32) -> [u8; 32] {
    let input = HashInput::new(hash_version, "/downstream").text(&key.to_string());
    match attempt {
        Some(attempt) => input.json(&Json::Number(Number::from(u64::from(attempt)))).digest(),
        None => input.digest(),
    }
}

/// A downstream digest as a UUID of version 8, for providers whose keys are short.
pub fn downstream_uuid(digest: [u8; 32]) -> Uuid {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

/// The array that is hashed, written member by member.
#[derive(Clone)]
pub(super) struct HashInput(String);

impl HashInput {
    /// An array that begins with the tag `intent-ledger/VERSION` and what follows it.
    pub(super) fn new(hash_version: u32, purpose: &str) -> HashInput {
        // Long enough for a key and some names, so that most inputs are written in one piece.
        let mut text = String::with_capacity(256);
        let _ = write!(text, "[\"intent-ledger/{hash_version}{purpose}\"");
        HashInput(text)
    }

    /// Adds a string, byte by byte as it is.
    pub(super) fn text(mut self, text: &str) -> HashInput {
        self.0.push(',');
        write_string(text, &mut self.0);
        self
    }

    /// Adds a value.
    pub(super) fn json(mut self, value: &Json) -> HashInput {
        self.0.push(',');
        value.write_canonical(&mut self.0);
        self
    }

    /// Closes the array and hashes it.
    pub(super) fn digest(mut self) -> [u8; 32] {
        self.0.push(']');
        Sha256::digest(self.0).into()
    }
}

/// Adds the run, or a null in its place, so that positions do not shift.
fn scoped(input: HashInput, scope: Scope, run_id: &str) -> Result<HashInput, IdentityError> {
    match scope {
        Scope::Run if run_id.is_empty() => Err(IdentityError::RunMissing),
        Scope::Run => Ok(input.text(run_id)),
        Scope::Namespace => Ok(input.json(&Json::Null)),
    }
}

fn policy_values(recipe: &Recipe, arguments: &Json) -> Result<Json, IdentityError> {
    let values = recipe.identity.iter().map(|place| {
        let text = identity_text(place, arguments)?;
        Ok((place.pointer.to_string(), Json::String(text)))
    });
    values.collect::<Result<Members, _>>().map(Json::Object)
}

/// The business ids of these names, as far as the call brings them: by the identity pointer that ends
/// in the name, or by its business ids. What the key is made of goes before what is merely sent along.
pub fn named_ids(names: &[String], recipe: &Recipe, call: &Call<'_>) -> BTreeMap<String, String> {
    let value = |name: &String| {
        let pointed = |place: &&IdentityPointer| place.pointer.tokens().last() == Some(name);
        let place = recipe.identity.iter().find(pointed);
        let bound = place.and_then(|place| identity_text(place, call.arguments).ok());
        bound.or_else(|| call.business_ids.get(name).cloned())
    };
    names.iter().filter_map(|name| Some((name.clone(), value(name)?))).collect()
}

/// The texts and numbers that a policy's pointers name in the arguments, as they were sent: what a person
/// would read as the key.
pub fn pointed_texts<'a>(recipe: &'a Recipe, arguments: &'a Json) -> impl Iterator<Item = &'a str> {
    recipe.identity.iter().filter_map(|place| match arguments.pointer(&place.pointer)? {
        Json::String(text) => Some(text.as_str()),
        Json::Number(number) => Some(number.as_str()),
        Json::Null | Json::Bool(_) | Json::Array(_) | Json::Object(_) => None,
    })
}

/// The value at an identity pointer as text, in which 8812 and "8812" are the same order.
fn identity_text(place: &IdentityPointer, arguments: &Json) -> Result<String, IdentityError> {
    let pointer = || place.pointer.clone();
    let text = match arguments.pointer(&place.pointer) {
        None | Some(Json::Null) => {
            return Err(IdentityError::PointerMissing { pointer: pointer() });
        }
        Some(Json::Array(_) | Json::Object(_)) => {
            return Err(IdentityError::PointerNotScalar { pointer: pointer() });
        }
        Some(Json::Bool(value)) => value.to_string(),
        Some(Json::Number(number)) => number.to_string(),
        Some(Json::String(text)) => text.clone(),
    };
    let text = normalized(place, &text);
    if text.trim().is_empty() {
        return Err(IdentityError::BlankValue { pointer: pointer() });
    }
    Ok(text)
}

/// The text as the place compares it.
pub(super) fn normalized(place: &IdentityPointer, text: &str) -> String {
    let text = place.normalize.iter().fold(text.to_owned(), |text, step| step.apply(&text));
    // Lower-casing can take a text out of NFC.
    nfc(&text).into_owned()
}

fn check_idempotency_key(key: &str) -> Result<(), IdentityError> {
    let outer_blank = key.trim() != key;
    check_text(key, NAME_BYTES_MAX)
        .and(if outer_blank { Err(TextFault::OuterBlank) } else { Ok(()) })
        .map_err(|why| IdentityError::BadIdempotencyKey { why })
}

fn checked_business_ids(ids: &BTreeMap<String, String>) -> Result<Json, IdentityError> {
    if ids.len() > BUSINESS_IDS_MAX {
        return Err(IdentityError::TooManyBusinessIds { count: ids.len() });
    }
    let mut members = BTreeMap::new();
    for (name, value) in ids {
        check_text(name, NAME_BYTES_MAX)
            .map_err(|why| IdentityError::BadBusinessName { name: name.clone(), why })?;
        check_text(value, BUSINESS_VALUE_BYTES_MAX)
            .map_err(|why| IdentityError::BadBusinessId { name: name.clone(), why })?;
        let name = nfc(name).into_owned();
        let value = Json::String(nfc(value).into_owned());
        if members.insert(name.clone(), value).is_some() {
            return Err(IdentityError::DoubledBusinessId { name });
        }
    }
    Ok(Json::Object(members.into_iter().collect()))
}

fn check_text(text: &str, bytes_max: usize) -> Result<(), TextFault> {
    if text.len() > bytes_max {
        Err(TextFault::TooLong { bytes: text.len(), bytes_max })
    } else if text.chars().any(char::is_control) {
        Err(TextFault::ControlCharacter)
    } else if text.trim().is_empty() {
        Err(TextFault::Blank)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
