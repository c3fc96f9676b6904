//! Lays the sections of a policy file over one another, and checks what comes out.

use std::{collections::BTreeSet, time::Duration};

use super::{
    mistake::{Mistake, Site},
    section::{Field, PolicyFile, Section, Sited},
    span::show_span,
};
use crate::domain::{
    identity::Recipe,
    retention::TOMBSTONE_LEAST,
    tool::{Downstream, StatusRule, ToolPolicy},
};

mod gates;
mod status;

/// The sections that say something of one tool in one namespace, the most specific first.
#[derive(Debug, Clone)]
pub(super) struct Layers<'a> {
    sections: [Option<&'a Section>; 4],
}

impl<'a> Layers<'a> {
    /// The layers of a tool, or of tools without a section, in a namespace, or in all others.
    pub(super) fn of(file: &'a PolicyFile, namespace: Option<&str>, tool: Option<&str>) -> Self {
        let namespace = namespace.and_then(|name| file.namespaces.get(name));
        let sections = [
            tool.and_then(|tool| namespace?.tools.get(tool)),
            tool.and_then(|tool| file.tools.get(tool)),
            namespace.map(|namespace| &namespace.defaults),
            Some(&file.defaults),
        ];
        Self { sections }
    }

    /// What the most specific section says that says anything.
    fn pick<T>(&self, field: impl Fn(&'a Section) -> &'a Field<T>) -> Pick<'a, T> {
        for (depth, section) in self.sections.iter().enumerate() {
            match section.map(&field) {
                None | Some(Field::Absent) => {}
                Some(Field::Broken) => return Pick::Broken,
                Some(Field::Set(set)) => return Pick::Set { depth, set },
            }
        }
        Pick::BuiltIn
    }

    fn get<T>(&self, field: impl Fn(&'a Section) -> &'a Field<T>) -> Option<&'a T> {
        match self.pick(field) {
            Pick::Set { set, .. } => Some(&set.value),
            Pick::BuiltIn | Pick::Broken => None,
        }
    }

    /// What holds for the tool.
    pub(super) fn policy(&self, status: Option<StatusRule>) -> ToolPolicy {
        let built_in = ToolPolicy::default();
        ToolPolicy {
            listed: self.sections[..2].iter().any(Option::is_some),
            refuse_unlisted: or(self.get(|s| &s.refuse_unlisted), built_in.refuse_unlisted),
            class: or(self.get(|s| &s.class), built_in.class),
            recipe: self.recipe(built_in.recipe),
            lease: or(self.get(|s| &s.lease), built_in.lease),
            lease_max: or(self.get(|s| &s.lease_max), built_in.lease_max),
            resend_window: or(self.get(|s| &s.resend_window), built_in.resend_window),
            retention: or(self.get(|s| &s.retention), built_in.retention),
            tombstone: or(self.get(|s| &s.tombstone), built_in.tombstone),
            max_attempts: or(self.get(|s| &s.max_attempts), built_in.max_attempts),
            retry_failed: or(self.get(|s| &s.retry_failed), built_in.retry_failed),
            give_up_after: or(self.get(|s| &s.give_up_after), built_in.give_up_after),
            max_result_bytes: or(self.get(|s| &s.max_result_bytes), built_in.max_result_bytes),
            check_with: self.get(|s| &s.check_with).cloned(),
            downstream: Downstream { status, ..self.downstream(built_in.downstream) },
            approval: self.approval(),
            limit_per_run: self.get(|s| &s.limit_per_run).copied(),
            halted: or(self.get(|s| &s.halted), built_in.halted),
            look_alike: self.look_alike(),
        }
    }

    fn recipe(&self, built_in: Recipe) -> Recipe {
        Recipe {
            hash_version: built_in.hash_version,
            identity: self.get(|s| &s.identity).map_or(built_in.identity, |list| values(list)),
            scope: or(self.get(|s| &s.scope), built_in.scope),
            free_text: self.get(|s| &s.free_text).map_or(built_in.free_text, |list| values(list)),
        }
    }

    fn downstream(&self, built_in: Downstream) -> Downstream {
        let deduplicates = or(self.get(|s| &s.deduplicates), false);
        Downstream {
            key_format: or(self.get(|s| &s.key_format), built_in.key_format),
            new_key_after_failed: or(
                self.get(|s| &s.new_key_after_failed),
                built_in.new_key_after_failed,
            ),
            dedup_window: self.get(|s| &s.window).copied().filter(|_| deduplicates),
            same_transaction: or(self.get(|s| &s.same_transaction), built_in.same_transaction),
            ..built_in
        }
    }

    /// What is wrong between the keys of the tool.
    fn conflicts(&self) -> Vec<Mistake> {
        let lists = self.named_as_both();
        let spans = [self.lease_over_max(), self.window_alone()].into_iter().flatten();
        let spans = spans.chain(self.short_retention());
        lists
            .into_iter()
            .chain(spans)
            .chain(self.status_conflicts())
            .chain(self.gate_conflicts())
            .collect()
    }

    fn lease_over_max(&self) -> Option<Mistake> {
        let built_in = ToolPolicy::default();
        let (lease, max) = (self.pick(|s| &s.lease), self.pick(|s| &s.lease_max));
        let (asked, most) = (lease.or(built_in.lease)?, max.or(built_in.lease_max)?);
        if asked <= most {
            return None;
        }
        let problem =
            format!("lease {} is longer than lease_max {}", show_span(asked), show_span(most));
        Some(nearer(&lease, &max)?.mistake(problem))
    }

    /// A retention that ends before what may still happen to a call.
    fn short_retention(&self) -> Vec<Mistake> {
        let (window, lease_max) = (self.pick(|s| &s.window), self.pick(|s| &s.lease_max));
        let open = self.get(|s| &s.window).filter(|_| or(self.get(|s| &s.deduplicates), false));
        let longest_lease = lease_max.or(ToolPolicy::default().lease_max);
        let (expires, approval) = (self.pick(|s| &s.approval.expires), self.approval());
        let spans = [
            self.retention_under("the downstream window", &window, open.copied()),
            self.retention_under("lease_max", &lease_max, longest_lease),
            self.retention_under("approval.expires", &expires, approval.map(|rule| rule.expires)),
        ];
        spans.into_iter().flatten().collect()
    }

    /// `span` is what the layers say of a span that a result must outlast, `least` what holds.
    fn retention_under<T>(
        &self,
        name: &str,
        span: &Pick<'a, T>,
        least: Option<Duration>,
    ) -> Option<Mistake> {
        let retention = self.pick(|s| &s.retention);
        let (kept, least) = (retention.or(ToolPolicy::default().retention)?, least?);
        if kept >= least {
            return None;
        }
        let (kept, least) = (show_span(kept), show_span(least));
        let problem = format!("retention {kept} is shorter than {name} {least}");
        Some(nearer(&retention, span)?.mistake(problem))
    }

    fn window_alone(&self) -> Option<Mistake> {
        match (self.pick(|s| &s.deduplicates), self.pick(|s| &s.window)) {
            (Pick::Set { set, .. }, Pick::BuiltIn) if set.value => {
                Some(set.site.mistake("needs a window: how long does it remember our key?"))
            }
            // A more specific `deduplicates = false` switches an inherited window off.
            (Pick::Set { set, depth }, Pick::Set { set: window, depth: below })
                if !set.value && below <= depth =>
            {
                Some(window.site.mistake("a window means nothing without deduplicates = true"))
            }
            (Pick::BuiltIn, Pick::Set { set: window, .. }) => {
                Some(window.site.mistake("a window means nothing without deduplicates = true"))
            }
            _ => None,
        }
    }

    /// Pointers that stand in `identity` and in `free_text`.
    fn named_as_both(&self) -> Vec<Mistake> {
        let (identity, free_text) = (self.pick(|s| &s.identity), self.pick(|s| &s.free_text));
        let (Pick::Set { set: keys, depth: above }, Pick::Set { set: texts, depth }) =
            (&identity, &free_text)
        else {
            return Vec::new();
        };
        let both = texts.value.iter().filter_map(|text| {
            let key = keys.value.iter().find(|key| key.value.pointer == text.value)?;
            let (here, there) =
                if depth <= above { (&text.site, &key.site) } else { (&key.site, &text.site) };
            Some(here.mistake(format!("the pointer also stands in {}", there.key)))
        });
        both.collect()
    }
}

/// What the layers say of one key.
#[derive(Debug)]
enum Pick<'a, T> {
    BuiltIn,
    Broken,
    Set { depth: usize, set: &'a Sited<T> },
}

impl<T: Copy> Pick<'_, T> {
    /// The value, with what is built in; nothing if it is broken.
    fn or(&self, built_in: T) -> Option<T> {
        match self {
            Self::BuiltIn => Some(built_in),
            Self::Broken => None,
            Self::Set { set, .. } => Some(set.value),
        }
    }
}

/// The site of the more specific of two keys; of the first where they stand in one section.
fn nearer<'a, A, B>(a: &Pick<'a, A>, b: &Pick<'a, B>) -> Option<&'a Site> {
    match (a, b) {
        (Pick::Set { depth, set }, Pick::Set { depth: other, .. }) if depth <= other => {
            Some(&set.site)
        }
        (_, Pick::Set { set, .. }) => Some(&set.site),
        (Pick::Set { set, .. }, _) => Some(&set.site),
        _ => None,
    }
}

fn or<T: Copy>(value: Option<&T>, built_in: T) -> T {
    value.copied().unwrap_or(built_in)
}

fn values<T: Clone>(list: &[Sited<T>]) -> Vec<T> {
    list.iter().map(|item| item.value.clone()).collect()
}

/// Everything that is wrong between the keys of each tool in each namespace.
///
/// A namespace inherits the mistakes of what it inherits; those are told once, where they stand.
pub(super) fn check(file: &PolicyFile) -> Vec<Mistake> {
    let mut mistakes = conflicts(file, None);
    for name in file.namespaces.keys() {
        let inherited: BTreeSet<&Mistake> = mistakes.iter().collect();
        let mut own = conflicts(file, Some(name));
        own.retain(|mistake| !inherited.contains(mistake));
        for mistake in own.iter_mut().filter(|mistake| !mistake.key.starts_with("namespaces.")) {
            mistake.problem.push_str(&format!(" in namespace {name:?}"));
        }
        mistakes.append(&mut own);
    }
    mistakes.sort();
    mistakes.dedup();
    mistakes
}

/// Tombstones that will stay longer than the file says.
pub(super) fn short_tombstones(file: &PolicyFile) -> Vec<Mistake> {
    let own = file.namespaces.values();
    let own = own.flat_map(|it| std::iter::once(&it.defaults).chain(it.tools.values()));
    let sections = std::iter::once(&file.defaults).chain(file.tools.values()).chain(own);
    let short = sections.filter_map(|section| match &section.tombstone {
        Field::Set(set) if set.value < TOMBSTONE_LEAST => {
            let (given, least) = (show_span(set.value), show_span(TOMBSTONE_LEAST));
            Some(set.site.mistake(format!(
                "{given} is less than {least}, which a key is remembered at least after its result \
                 is pruned; it counts as {least}"
            )))
        }
        _ => None,
    });
    short.collect()
}

fn conflicts(file: &PolicyFile, namespace: Option<&str>) -> Vec<Mistake> {
    let tools = tools_of(file, namespace);
    tools.flat_map(|tool| Layers::of(file, namespace, tool).conflicts()).collect()
}

/// All tools that have a section for the namespace, after `None` for those that have none.
pub(super) fn tools_of<'a>(
    file: &'a PolicyFile,
    namespace: Option<&str>,
) -> impl Iterator<Item = Option<&'a str>> {
    let own = namespace.and_then(|name| file.namespaces.get(name)).map(|section| &section.tools);
    let names: BTreeSet<&str> = file
        .tools
        .keys()
        .chain(own.into_iter().flat_map(|tools| tools.keys()))
        .map(|s| &**s)
        .collect();
    std::iter::once(None).chain(names.into_iter().map(Some))
}
