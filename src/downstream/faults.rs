//! Which faults are set, and which of them a call or a question meets.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    chance::Chance,
    fault::{Fault, FaultError, FaultKind, FaultRate, Reach},
};

/// The faults that are set: as rates, and for single keys.
///
/// As JSON, such as `PUT /v1/faults` takes it:
/// `{"rates": {"lost": 0.1, "slow": "0.5:2s"}, "keys": {"KEY": "effect_then_timeout,status_html"}}`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "FaultsText", into = "FaultsText")]
pub struct Faults {
    rates: BTreeMap<FaultKind, FaultRate>,
    keys: BTreeMap<String, Vec<Fault>>,
}

impl Faults {
    /// No faults.
    pub fn none() -> Self {
        Self::default()
    }

    /// These, and one by chance; it replaces an earlier rate of the same kind.
    #[must_use]
    pub fn with_rate(mut self, rate: FaultRate) -> Self {
        self.rates.insert(rate.fault().kind(), rate);
        self
    }

    /// These, and some for every call and question of a key; they replace earlier ones of that key.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<String>, faults: impl Into<Vec<Fault>>) -> Self {
        self.keys.insert(key.into(), faults.into());
        self
    }

    /// What the `nth` call of a key meets, beside what it asks for itself.
    pub(super) fn of_call(&self, chance: Chance, key: &str, nth: u64, own: &[Fault]) -> Met {
        self.met(key, own, |kind| match kind.reach() {
            Reach::Call => Some(chance.draw(kind, key, nth)),
            Reach::Question | Reach::Key => None,
        })
    }

    /// What the `nth` status question about a key meets, beside what it or an earlier call asked for.
    pub(super) fn of_question(&self, chance: Chance, key: &str, nth: u64, own: &[Fault]) -> Met {
        self.met(key, own, |kind| match kind.reach() {
            Reach::Question => Some(chance.draw(kind, key, nth)),
            Reach::Key => Some(chance.draw(kind, key, 0)),
            Reach::Call => None,
        })
    }

    fn met(&self, key: &str, own: &[Fault], draw: impl Fn(FaultKind) -> Option<f64>) -> Met {
        let drawn = self.rates.values().filter_map(|rate| {
            let drawn = draw(rate.fault().kind())?;
            (drawn < rate.rate()).then(|| rate.fault())
        });
        let of_key = self.keys.get(key).into_iter().flatten().copied();
        Met(own.iter().copied().chain(of_key).chain(drawn).collect())
    }
}

/// The faults that one call or one question meets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Met(Vec<Fault>);

impl Met {
    /// Whether it meets one of this kind.
    pub(super) fn has(&self, kind: FaultKind) -> bool {
        self.span(kind).is_some()
    }

    /// How long it takes, if it meets one of this kind; what was asked for goes before chance.
    pub(super) fn span(&self, kind: FaultKind) -> Option<Duration> {
        self.0.iter().find(|fault| fault.kind() == kind).map(|fault| fault.span())
    }
}

/// [`Faults`] in words.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FaultsText {
    #[serde(default)]
    rates: BTreeMap<String, RateText>,
    #[serde(default)]
    keys: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum RateText {
    Number(f64),
    Text(String),
}

impl TryFrom<FaultsText> for Faults {
    type Error = FaultError;

    fn try_from(text: FaultsText) -> Result<Self, FaultError> {
        let mut faults = Self::none();
        for (name, value) in &text.rates {
            let kind = name.parse()?;
            faults = faults.with_rate(match value {
                RateText::Number(rate) => FaultRate::new(FaultKind::into(kind), *rate)?,
                RateText::Text(text) => FaultRate::read(kind, text)?,
            });
        }
        for (key, list) in text.keys {
            faults = faults.with_key(key, Fault::list(&list)?);
        }
        Ok(faults)
    }
}

impl From<Faults> for FaultsText {
    fn from(faults: Faults) -> Self {
        let rate = |rate: FaultRate| match rate.fault().kind().default_span() {
            None => RateText::Number(rate.rate()),
            Some(_) => RateText::Text(rate.value()),
        };
        let list = |faults: Vec<Fault>| {
            faults.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
        };
        Self {
            rates: faults
                .rates
                .into_values()
                .map(|it| (it.fault().kind().to_string(), rate(it)))
                .collect(),
            keys: faults.keys.into_iter().map(|(key, faults)| (key, list(faults))).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Faults, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn faults_are_read_and_written_as_json() {
        let faults = read(
            r#"{"rates":{"lost":0.1,"slow":"0.5:2s","twice":1},"keys":{"k":"status_html,slow=1ms"}}"#,
        )
        .unwrap();
        let written = serde_json::to_string(&faults).unwrap();
        assert_eq!(
            written,
            r#"{"rates":{"lost":"0.1:0s","slow":"0.5:2s","twice":1.0},"keys":{"k":"status_html,slow=1ms"}}"#
        );
        assert_eq!(read(&written), Ok(faults));
        assert_eq!(read("{}"), Ok(Faults::none()));
    }

    #[test]
    fn unknown_words_are_refused() {
        for (text, said) in [
            (r#"{"rates":{"slwo":1}}"#, r#"there is no fault "slwo""#),
            (r#"{"rates":{"slow":2}}"#, r#""2" is no rate for slow"#),
            (r#"{"keys":{"k":"lost, html"}}"#, r#"there is no fault "html""#),
            (r#"{"rate":{}}"#, "unknown field `rate`"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn a_lie_stays_with_its_key_and_other_faults_are_drawn_each_time() {
        let rate = |text: &str| text.parse::<FaultRate>().unwrap();
        let faults = Faults::none()
            .with_rate(rate("status_html=0.5"))
            .with_rate(rate("status_error=0.5"))
            .with_rate(rate("slow=0.5"));
        let chance = Chance::new(3);
        let (mut lies, mut errors, mut slow) = (0, 0, 0);
        for key in (0..200).map(|number| format!("k{number}")) {
            let met: Vec<Met> =
                (0..4).map(|nth| faults.of_question(chance, &key, nth, &[])).collect();
            let html = met.iter().filter(|met| met.has(FaultKind::StatusHtml)).count();
            assert!(html == 0 || html == 4, "{key}: a lie came and went");
            lies += html;
            let failed = met.iter().filter(|met| met.has(FaultKind::StatusError)).count();
            errors += usize::from(failed != 0 && failed != 4);
            assert!(met.iter().all(|met| !met.has(FaultKind::Slow)), "a call's fault");
            let calls = (0..4).map(|nth| faults.of_call(chance, &key, nth, &[]));
            let calls: Vec<Met> = calls.collect();
            assert!(calls.iter().all(|met| !met.has(FaultKind::StatusHtml)), "a status fault");
            slow += calls.iter().filter(|met| met.has(FaultKind::Slow)).count();
        }
        assert!((300..500).contains(&lies), "{lies} of 800");
        assert!(errors > 150, "questions about {errors} of 200 keys had mixed answers");
        assert!((300..500).contains(&slow), "{slow} of 800");
    }

    #[test]
    fn what_a_call_asks_for_goes_before_what_is_set() {
        let faults = Faults::none()
            .with_rate("slow=1:5s".parse().unwrap())
            .with_key("k", Fault::list("slow=3s,twice").unwrap());
        let met =
            |key, own: &str| faults.of_call(Chance::new(0), key, 0, &Fault::list(own).unwrap());
        let slow = |met: Met| met.span(FaultKind::Slow).map(|span| span.as_secs());
        assert_eq!(slow(met("other", "")), Some(5));
        assert_eq!(slow(met("k", "")), Some(3));
        assert_eq!(slow(met("k", "slow=1s")), Some(1));
        assert!(met("k", "slow=1s").has(FaultKind::Twice));
    }
}
