//! Chance that a seed repeats.

use super::fault::FaultKind;

/// Draws that look random and depend on nothing but the seed and what is drawn for.
///
/// There is no sequence: what befalls the second call of a key is the same whichever other calls
/// came before it, so a run of concurrent callers can be repeated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chance(u64);

impl Chance {
    /// The chance of a seed.
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number from 0 up to but not 1: for a kind of fault, and the `nth` time a key is met.
    pub(super) fn draw(self, kind: FaultKind, key: &str, nth: u64) -> f64 {
        let mut mixed = mix(self.0);
        // A byte's place counts as well as the byte.
        for byte in kind.name().bytes().chain([0]).chain(key.bytes()) {
            mixed = (mixed ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        // The 53 bits that a float holds.
        (mix(mixed ^ mix(nth)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The finisher of SplitMix64.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_met_for_each_kind_by_itself() {
        let chance = Chance::new(7);
        let met = |kind, limit: f64| {
            (0..10_000).filter(|nth| chance.draw(kind, &format!("k{nth}"), nth % 3) < limit).count()
        };
        for kind in FaultKind::ALL {
            let count = met(kind, 0.1);
            assert!((900..1100).contains(&count), "{kind}: {count} of 10000");
        }
        let both = (0..10_000)
            .filter(|nth| {
                let draw = |kind| chance.draw(kind, &format!("k{nth}"), 0);
                draw(FaultKind::Slow) < 0.5 && draw(FaultKind::Twice) < 0.5
            })
            .count();
        assert!((2300..2700).contains(&both), "two kinds hang together: {both} of 10000");
    }

    #[test]
    fn another_seed_key_or_time_draws_another_number() {
        let draw =
            |seed, key: &str, nth| Chance::new(seed).draw(FaultKind::Lost, key, nth).to_bits();
        assert_eq!(draw(1, "a", 0), draw(1, "a", 0));
        let others = [draw(1, "a", 0), draw(2, "a", 0), draw(1, "b", 0), draw(1, "a", 1)];
        for (at, one) in others.iter().enumerate() {
            assert!(!others[at + 1..].contains(one), "{others:?}");
        }
    }
}
