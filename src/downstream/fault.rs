//! The faults, each with the name that it has on the wire.

use std::{fmt, str::FromStr, time::Duration};

use thiserror::Error;

/// What can go wrong. The name on the wire is [`name`](Self::name).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// The effect happens; its answer comes so late that nobody waits for it.
    EffectThenTimeout,
    /// The effect happens; the answer is 500.
    EffectThenError,
    /// The effect happens at once; its answer comes later, as a success.
    Slow,
    /// The effect happens twice: two objects carry the key.
    Twice,
    /// No effect and no answer: the connection is closed, at once or after the span.
    Lost,
    /// No effect, and a definite answer: 422.
    Refused,
    /// No effect, and an answer that does not say so: 500, as after an effect.
    ErrorWithoutEffect,
    /// The effect happens; for the span the status says that it is absent.
    LateVisibility,
    /// The call is accepted with 202; the effect is under way for the span, then it happens.
    LateEffect,
    /// An outage begins with this call, which has no effect: all connections are cut and new ones
    /// refused for the span.
    Outage,
    /// The status names a state that no policy knows.
    StatusUnmapped,
    /// The status answers 200 with a page for people.
    StatusHtml,
    /// The status shows an object that carries another key.
    StatusOtherKey,
    /// The status shows the id of an object that all keys with this fault share.
    StatusSharedRef,
    /// The status sends the asker to a login page.
    StatusRedirect,
    /// The status says absent, whatever happened.
    StatusLiesAbsent,
    /// The status says done, whatever happened.
    StatusLiesDone,
    /// The status answers 503.
    StatusError,
    /// The status answers late.
    StatusSlow,
}

use FaultKind as Kind;

impl FaultKind {
    /// Every kind, in the order in which they are explained.
    pub const ALL: [Self; 19] = [
        Kind::EffectThenTimeout,
        Kind::EffectThenError,
        Kind::Slow,
        Kind::Twice,
        Kind::Lost,
        Kind::Refused,
        Kind::ErrorWithoutEffect,
        Kind::LateVisibility,
        Kind::LateEffect,
        Kind::Outage,
        Kind::StatusUnmapped,
        Kind::StatusHtml,
        Kind::StatusOtherKey,
        Kind::StatusSharedRef,
        Kind::StatusRedirect,
        Kind::StatusLiesAbsent,
        Kind::StatusLiesDone,
        Kind::StatusError,
        Kind::StatusSlow,
    ];

    /// The name on the wire and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::EffectThenTimeout => "effect_then_timeout",
            Kind::EffectThenError => "effect_then_error",
            Kind::Slow => "slow",
            Kind::Twice => "twice",
            Kind::Lost => "lost",
            Kind::Refused => "refused",
            Kind::ErrorWithoutEffect => "error_without_effect",
            Kind::LateVisibility => "late_visibility",
            Kind::LateEffect => "late_effect",
            Kind::Outage => "outage",
            Kind::StatusUnmapped => "status_unmapped",
            Kind::StatusHtml => "status_html",
            Kind::StatusOtherKey => "status_other_key",
            Kind::StatusSharedRef => "status_shared_ref",
            Kind::StatusRedirect => "status_redirect",
            Kind::StatusLiesAbsent => "status_lies_absent",
            Kind::StatusLiesDone => "status_lies_done",
            Kind::StatusError => "status_error",
            Kind::StatusSlow => "status_slow",
        }
    }

    /// What happens, in a line.
    pub const fn meaning(self) -> &'static str {
        match self {
            Kind::EffectThenTimeout => "the effect happens, the answer comes after SPAN",
            Kind::EffectThenError => "the effect happens, the answer is 500",
            Kind::Slow => "the effect happens at once, the answer comes after SPAN",
            Kind::Twice => "the effect happens twice: two objects carry the key",
            Kind::Lost => "no effect; the connection is closed after SPAN",
            Kind::Refused => "no effect; a definite 422",
            Kind::ErrorWithoutEffect => "no effect; 500, as after an effect",
            Kind::LateVisibility => "the effect happens, the status says absent for SPAN",
            Kind::LateEffect => "202; the status says queued, the effect happens after SPAN",
            Kind::Outage => "no effect; for SPAN every connection is refused",
            Kind::StatusUnmapped => "the status names a state that no policy knows",
            Kind::StatusHtml => "the status is 200 with an HTML page",
            Kind::StatusOtherKey => "the status shows an object with another key",
            Kind::StatusSharedRef => "the status shows the same id for all such keys",
            Kind::StatusRedirect => "the status is 302 to a login page",
            Kind::StatusLiesAbsent => "the status says absent, whatever happened",
            Kind::StatusLiesDone => "the status says done, whatever happened",
            Kind::StatusError => "the status is 503",
            Kind::StatusSlow => "the status is answered after SPAN",
        }
    }

    /// How long it takes unless told otherwise; `None` for what takes no time.
    pub const fn default_span(self) -> Option<Duration> {
        match self {
            // For ever, as any client sees it.
            Kind::EffectThenTimeout => Some(Duration::from_secs(3600)),
            Kind::Slow | Kind::StatusSlow => Some(Duration::from_secs(1)),
            Kind::LateVisibility | Kind::LateEffect | Kind::Outage => Some(Duration::from_secs(2)),
            Kind::Lost => Some(Duration::ZERO),
            Kind::EffectThenError
            | Kind::Twice
            | Kind::Refused
            | Kind::ErrorWithoutEffect
            | Kind::StatusUnmapped
            | Kind::StatusHtml
            | Kind::StatusOtherKey
            | Kind::StatusSharedRef
            | Kind::StatusRedirect
            | Kind::StatusLiesAbsent
            | Kind::StatusLiesDone
            | Kind::StatusError => None,
        }
    }

    /// What of the answers to a status question it concerns.
    pub(super) const fn reach(self) -> Reach {
        match self {
            Kind::StatusUnmapped
            | Kind::StatusHtml
            | Kind::StatusOtherKey
            | Kind::StatusSharedRef
            | Kind::StatusRedirect
            | Kind::StatusLiesAbsent
            | Kind::StatusLiesDone => Reach::Key,
            Kind::StatusError | Kind::StatusSlow => Reach::Question,
            Kind::EffectThenTimeout
            | Kind::EffectThenError
            | Kind::Slow
            | Kind::Twice
            | Kind::Lost
            | Kind::Refused
            | Kind::ErrorWithoutEffect
            | Kind::LateVisibility
            | Kind::LateEffect
            | Kind::Outage => Reach::Call,
        }
    }
}

/// For how long a fault that was drawn by chance holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// For one call; the next one is drawn anew.
    Call,
    /// For one status question; the next one is drawn anew.
    Question,
    /// For all status questions about a key: a source that lies goes on lying.
    Key,
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FaultKind {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let kind = Self::ALL.into_iter().find(|kind| kind.name() == text);
        kind.ok_or_else(|| FaultError::Unknown { name: text.to_owned() })
    }
}

/// Why a fault was not understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FaultError {
    /// There is no such fault.
    #[error("there is no fault {name:?}; there are: {}", FaultKind::ALL.map(FaultKind::name).join(", "))]
    Unknown {
        /// What was said.
        name: String,
    },
    /// A time was given to what takes none.
    #[error("{kind} takes no span, so {text:?} means nothing")]
    NoSpan {
        /// The fault.
        kind: FaultKind,
        /// What was said.
        text: String,
    },
    /// A span that is none.
    #[error("{text:?} is no span for {kind}; one is such as 500ms, 2s or 1h")]
    Span {
        /// The fault.
        kind: FaultKind,
        /// What was said.
        text: String,
    },
    /// A question asked for what can only happen to calls.
    #[error("{kind} is a fault of calls, and this is a status question")]
    OfCalls {
        /// The fault.
        kind: FaultKind,
    },
    /// A rate that is none.
    #[error("{text:?} is no rate for {kind}; one is a number from 0 to 1")]
    Rate {
        /// The fault.
        kind: FaultKind,
        /// What was said.
        text: String,
    },
}

/// A fault, as a call gets it: `NAME` or `NAME=SPAN`, such as `slow=2s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    kind: FaultKind,
    span: Duration,
}

impl Fault {
    /// The kind.
    pub fn kind(self) -> FaultKind {
        self.kind
    }

    /// How long it takes; zero for what takes no time.
    pub fn span(self) -> Duration {
        self.span
    }

    /// The same fault, for another time.
    ///
    /// # Errors
    ///
    /// The fault takes no time.
    pub fn lasting(self, span: Duration) -> Result<Self, FaultError> {
        if self.kind.default_span().is_none() {
            let text = humantime::format_duration(span).to_string();
            return Err(FaultError::NoSpan { kind: self.kind, text });
        }
        Ok(Self { span, ..self })
    }

    fn read(kind: FaultKind, span: Option<&str>) -> Result<Self, FaultError> {
        let Some(text) = span else { return Ok(kind.into()) };
        let span = humantime::parse_duration(text)
            .map_err(|_| FaultError::Span { kind, text: text.to_owned() })?;
        Self::from(kind)
            .lasting(span)
            .map_err(|_| FaultError::NoSpan { kind, text: text.to_owned() })
    }

    /// Reads a list, separated by commas.
    ///
    /// # Errors
    ///
    /// The first one that was not understood.
    pub fn list(text: &str) -> Result<Vec<Self>, FaultError> {
        text.split(',').map(str::trim).filter(|text| !text.is_empty()).map(str::parse).collect()
    }

    /// Reads a list that a status question asks for.
    pub(super) fn list_of_question(text: &str) -> Result<Vec<Self>, FaultError> {
        let list = Self::list(text)?;
        match list.iter().find(|fault| fault.kind.reach() == Reach::Call) {
            Some(fault) => Err(FaultError::OfCalls { kind: fault.kind }),
            None => Ok(list),
        }
    }
}

impl From<FaultKind> for Fault {
    fn from(kind: FaultKind) -> Self {
        Self { kind, span: kind.default_span().unwrap_or_default() }
    }
}

impl FromStr for Fault {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let (name, span) = match text.split_once('=') {
            Some((name, span)) => (name, Some(span)),
            None => (text, None),
        };
        Self::read(name.trim().parse()?, span.map(str::trim))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind.default_span() {
            None => write!(f, "{}", self.kind),
            Some(_) => write!(f, "{}={}", self.kind, humantime::format_duration(self.span)),
        }
    }
}

/// How often a fault happens: `NAME=RATE` or `NAME=RATE:SPAN`, such as `slow=0.1:2s`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FaultRate {
    fault: Fault,
    rate: f64,
}

impl FaultRate {
    /// Lets a fault happen to this part of the calls, from 0 to 1.
    ///
    /// # Errors
    ///
    /// The rate is none.
    pub fn new(fault: Fault, rate: f64) -> Result<Self, FaultError> {
        if (0.0..=1.0).contains(&rate) {
            Ok(Self { fault, rate })
        } else {
            Err(FaultError::Rate { kind: fault.kind, text: rate.to_string() })
        }
    }

    /// The fault.
    pub fn fault(self) -> Fault {
        self.fault
    }

    /// The part of the calls, from 0 to 1.
    pub fn rate(self) -> f64 {
        self.rate
    }

    /// Reads `RATE` or `RATE:SPAN` of a fault.
    pub(super) fn read(kind: FaultKind, text: &str) -> Result<Self, FaultError> {
        let (rate, span) = match text.split_once(':') {
            Some((rate, span)) => (rate.trim(), Some(span.trim())),
            None => (text.trim(), None),
        };
        let fault = Fault::read(kind, span)?;
        let wrong = || FaultError::Rate { kind, text: rate.to_owned() };
        Self::new(fault, rate.parse().map_err(|_| wrong())?).map_err(|_| wrong())
    }

    /// What [`read`](Self::read) reads.
    pub(super) fn value(self) -> String {
        match self.fault.kind.default_span() {
            None => self.rate.to_string(),
            Some(_) => format!("{}:{}", self.rate, humantime::format_duration(self.fault.span)),
        }
    }
}

impl FromStr for FaultRate {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        Self::read(name.trim().parse()?, value)
    }
}

impl fmt::Display for FaultRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.fault.kind, self.value())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_read_by_its_name() {
        for kind in FaultKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            let fault = Fault::from(kind);
            assert_eq!(fault.to_string().parse(), Ok(fault));
            let rate = FaultRate::new(fault, 0.25).unwrap();
            assert_eq!(rate.to_string().parse(), Ok(rate));
        }
    }

    #[test]
    fn a_list_has_spans_where_they_mean_something() {
        let list = Fault::list("effect_then_timeout, late_visibility=2500ms,,twice").unwrap();
        let shown: Vec<String> = list.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["effect_then_timeout=1h", "late_visibility=2s 500ms", "twice"]);
        assert_eq!(Fault::list(" , ").unwrap(), []);
    }

    #[test]
    fn what_means_nothing_is_refused_by_name() {
        let list = |text: &str| Fault::list(text).unwrap_err().to_string();
        assert!(list("slwo").starts_with(r#"there is no fault "slwo"; there are: effect_then_"#));
        assert_eq!(list("twice=2s"), r#"twice takes no span, so "2s" means nothing"#);
        assert_eq!(
            list("slow=soon"),
            r#""soon" is no span for slow; one is such as 500ms, 2s or 1h"#
        );
        let rate = |text: &str| text.parse::<FaultRate>().unwrap_err().to_string();
        for (text, shown) in [("slow", ""), ("slow=1.5:2s", "1.5"), ("slow=NaN", "NaN")] {
            assert_eq!(
                rate(text),
                format!("{shown:?} is no rate for slow; one is a number from 0 to 1")
            );
        }
        assert_eq!(
            Fault::list_of_question("status_slow,slow").unwrap_err().to_string(),
            "slow is a fault of calls, and this is a status question"
        );
        assert_eq!(rate("twice=0.5:2s"), r#"twice takes no span, so "2s" means nothing"#);
    }
}
