//! The active policy beside the older ones that stored rows were made under.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use super::{Entry, Policy, Tools};
use crate::domain::{
    identity::{HASH_VERSION, Recipe},
    intent::RecipeVersion,
    tool::{Class, ToolPolicy},
};

/// The active policy, and every older one that rows or tombstones still refer to.
///
/// A row stores the version of the policy it was made under and the version of the hash it was
/// made with; together they name its recipe. An upgrade that raises the hash version makes every
/// recipe older, that of the active policy included.
#[derive(Debug, Clone)]
pub struct PolicySet {
    active: Arc<Policy>,
    older: Vec<Arc<Policy>>,
    /// Those of `older` whose recipes are not all those of a newer one. Most changes of a policy
    /// leave the recipes alone, and tombstones keep versions alive for a year.
    distinct: Vec<Arc<Policy>>,
    hash_version: u32,
}

/// A recipe of one tool, and the versions that rows made under it store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionedRecipe<'a> {
    /// The newest version of the policy that had it, and the version of the hash.
    pub version: RecipeVersion,
    /// What turned a call into a key then.
    pub recipe: Cow<'a, Recipe>,
}

impl PolicySet {
    /// A set whose new rows are made with the current hash version.
    pub fn new(active: Arc<Policy>, older: Vec<Arc<Policy>>) -> Self {
        Self::with_hash_version(active, older, HASH_VERSION)
    }

    /// A set whose new rows are made with another hash version.
    pub fn with_hash_version(
        active: Arc<Policy>,
        mut older: Vec<Arc<Policy>>,
        hash_version: u32,
    ) -> Self {
        older.retain(|policy| policy.version != active.version);
        older.sort_by_key(|policy| std::cmp::Reverse(policy.version));
        older.dedup_by_key(|policy| policy.version);
        let mut distinct: Vec<Arc<Policy>> = Vec::new();
        for policy in &older {
            if !std::iter::once(&active).chain(&distinct).any(|newer| same_recipes(newer, policy)) {
                distinct.push(Arc::clone(policy));
            }
        }
        Self { active, older, distinct, hash_version }
    }

    /// The policy that decides.
    pub fn active(&self) -> &Arc<Policy> {
        &self.active
    }

    /// The older ones, the newest first.
    pub fn older(&self) -> &[Arc<Policy>] {
        &self.older
    }

    /// The hash version that new rows are made with.
    pub fn hash_version(&self) -> u32 {
        self.hash_version
    }

    /// The recipe that new rows of a tool are made with.
    pub fn active_recipe(&self, namespace: &str, tool: &str) -> VersionedRecipe<'_> {
        let recipe = &self.active.tool(namespace, tool).recipe;
        let version = RecipeVersion { policy: self.active.version, hash: self.hash_version };
        VersionedRecipe { version, recipe: at_hash_version(recipe, self.hash_version) }
    }

    /// The recipes, other than the active one, that rows of a tool may have been made under: a
    /// Begin looks their keys up before it says that a call is new. The newest come first.
    ///
    /// Versions under which the tool was not recorded count for nothing. While the active one
    /// does not record it, recipes that equal the active one's count: rows of that time still
    /// decide.
    pub fn older_recipes(&self, namespace: &str, tool: &str) -> Vec<VersionedRecipe<'_>> {
        if self.distinct.is_empty() && self.hash_version <= 1 {
            return Vec::new();
        }
        let active = self.active.tool(namespace, tool);
        let mut found: Vec<VersionedRecipe<'_>> = Vec::new();
        for policy in std::iter::once(&self.active).chain(&self.distinct) {
            let then = policy.tool(namespace, tool);
            if then.class != Class::Effectful {
                continue;
            }
            for hash_version in (1..=self.hash_version).rev() {
                let is_active = active.class == Class::Effectful
                    && hash_version == self.hash_version
                    && same_but_for_hash(&then.recipe, &active.recipe);
                let is_found = found.iter().any(|other| {
                    other.recipe.hash_version == hash_version
                        && same_but_for_hash(&other.recipe, &then.recipe)
                });
                if !is_active && !is_found {
                    let recipe = at_hash_version(&then.recipe, hash_version);
                    let version = RecipeVersion { policy: policy.version, hash: hash_version };
                    found.push(VersionedRecipe { version, recipe });
                }
            }
        }
        found
    }

    /// The recipe a row was made under; `None` if the set has no such policy.
    pub fn recipe_of(
        &self,
        version: RecipeVersion,
        namespace: &str,
        tool: &str,
    ) -> Option<Cow<'_, Recipe>> {
        let policy = self.version(version.policy)?;
        Some(at_hash_version(&policy.tool(namespace, tool).recipe, version.hash))
    }

    fn version(&self, version: u32) -> Option<&Arc<Policy>> {
        if version == self.active.version {
            return Some(&self.active);
        }
        let newest_first = |policy: &Arc<Policy>| version.cmp(&policy.version);
        Some(&self.older[self.older.binary_search_by(newest_first).ok()?])
    }
}

fn at_hash_version(recipe: &Recipe, hash_version: u32) -> Cow<'_, Recipe> {
    if recipe.hash_version == hash_version {
        Cow::Borrowed(recipe)
    } else {
        Cow::Owned(Recipe { hash_version, ..recipe.clone() })
    }
}

fn same_but_for_hash(a: &Recipe, b: &Recipe) -> bool {
    let Recipe { hash_version: _, identity, scope, free_text } = a;
    (identity, scope, free_text) == (&b.identity, &b.scope, &b.free_text)
}

/// Whether two policies record the same tools under the same recipes, in every namespace.
fn same_recipes(a: &Policy, b: &Policy) -> bool {
    fn all<K: Eq + std::hash::Hash, V>(
        a: &HashMap<K, V>,
        b: &HashMap<K, V>,
        same: impl Fn(&V, &V) -> bool,
    ) -> bool {
        a.len() == b.len() && a.iter().all(|(k, v)| b.get(k).is_some_and(|w| same(v, w)))
    }
    let tool = |a: &Entry, b: &Entry| {
        let (a, b) = (&a.policy, &b.policy);
        let recorded = |policy: &ToolPolicy| policy.class == Class::Effectful;
        recorded(a) == recorded(b) && (!recorded(a) || a.recipe == b.recipe)
    };
    let tools =
        |a: &Tools, b: &Tools| tool(&a.unlisted, &b.unlisted) && all(&a.listed, &b.listed, tool);
    tools(&a.everywhere, &b.everywhere) && all(&a.namespaces, &b.namespaces, tools)
}

/// Why an offered policy must not become active while these tools have unsettled rows: one
/// sentence for each tool whose rows it would stop caring for; empty if it may.
///
/// `unsettled` names namespace and tool; doubled names are told once.
pub fn lowered(active: &Policy, offered: &Policy, unsettled: &[(String, String)]) -> Vec<String> {
    let distinct: BTreeSet<&(String, String)> = unsettled.iter().collect();
    let mut reasons = Vec::new();
    for (namespace, tool) in distinct {
        let (now, then) = (active.tool(namespace, tool), offered.tool(namespace, tool));
        let whose = format!("tool {tool:?} in namespace {namespace:?} has unsettled intents");
        let lower = match then.class {
            Class::ReadOnly => Some("read_only"),
            Class::Idempotent => Some("idempotent"),
            Class::Effectful => None,
        };
        if let Some(class) = lower.filter(|_| now.class == Class::Effectful) {
            reasons.push(format!("{whose}, and its class would become {class}"));
        }
        if now.downstream.status.is_some() && then.downstream.status.is_none() {
            reasons.push(format!("{whose}, and its status endpoint would be dropped"));
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> Arc<Policy> {
        Arc::new(Policy::from_text(text).unwrap_or_else(|error| panic!("{error}")))
    }

    /// A policy with one tool, `a`.
    fn with_tool(version: u32, keys: &str) -> Arc<Policy> {
        policy(&format!("version = {version}\n[tools.a]\n{keys}"))
    }

    /// Policy version, hash version and number of identity pointers of each older recipe.
    fn found(set: &PolicySet, tool: &str) -> Vec<(u32, u32, usize)> {
        let recipes = set.older_recipes("default", tool);
        recipes
            .iter()
            .map(|old| (old.version.policy, old.recipe.hash_version, old.recipe.identity.len()))
            .collect()
    }

    #[test]
    fn older_recipes_are_those_a_row_may_have_been_made_under() {
        let (none, one, two) = ("", "identity = [\"/x\"]", "identity = [\"/x\", \"/y\"]");
        let idle = "class = \"idempotent\"\nidentity = [\"/x\"]";
        let spare = "identity = [\"/x\"]\nlease = \"5s\"";
        type Row<'a> = (&'a [&'a str], &'a [(u32, usize)]);
        // The tool's keys in each version from 1 on, the last of them active; what is found.
        let table: &[Row<'_>] = &[
            (&[one], &[]),
            (&[one, one], &[]),
            (&[one, spare], &[]),
            (&[one, two], &[(1, 1)]),
            (&[none, one, two], &[(2, 1), (1, 0)]),
            (&[one, none, one, two], &[(3, 1), (2, 0)]),
            (&[two, one, two], &[(2, 1)]),
            // A version that recorded nothing has no rows.
            (&[idle, two], &[]),
            (&[two, idle, one], &[(1, 2)]),
            // While nothing is recorded, the rows of before still decide.
            (&[one, idle], &[(1, 1)]),
            (&[one, two, idle], &[(2, 2), (1, 1)]),
            (&[one, spare, idle], &[(2, 1)]),
            (&[idle, idle], &[]),
        ];
        for (versions, expected) in table {
            let numbered = versions.iter().zip(1..);
            let mut older: Vec<_> = numbered.map(|(keys, v)| with_tool(v, keys)).collect();
            let active = older.pop().expect("each row has a version");
            let set = PolicySet::new(active, older);
            let expected: Vec<_> = expected.iter().map(|(v, n)| (*v, HASH_VERSION, *n)).collect();
            assert_eq!(found(&set, "a"), expected, "{versions:?}");
        }
    }

    #[test]
    fn scope_free_text_and_normalize_make_a_recipe_too() {
        let plain = "identity = [\"/x\"]";
        for keys in [
            "identity = [\"/x\"]\nscope = \"namespace\"",
            "identity = [\"/x\"]\nfree_text = [\"/y\"]",
            "identity = [{ pointer = \"/x\", normalize = [\"trim\"] }]",
        ] {
            let set = PolicySet::new(with_tool(2, keys), vec![with_tool(1, plain)]);
            assert_eq!(found(&set, "a"), [(1, HASH_VERSION, 1)], "{keys}");
        }
    }

    #[test]
    fn a_tool_that_was_listed_later_was_recorded_before_as_unlisted() {
        let built_in = Arc::new(Policy::builtin());
        let set = PolicySet::new(with_tool(1, "identity = [\"/x\"]"), vec![built_in]);
        assert_eq!(found(&set, "a"), [(0, HASH_VERSION, 0)]);
        assert!(found(&set, "other").is_empty());

        let older = vec![with_tool(1, "identity = [\"/x\"]")];
        let set = PolicySet::new(policy("version = 2"), older);
        assert_eq!(found(&set, "a"), [(1, HASH_VERSION, 1)]);
    }

    #[test]
    fn recipes_of_a_tenant_are_its_own() {
        let text = |version, keys| {
            policy(&format!("version = {version}\n[tools.a]\n[namespaces.n.tools.a]\n{keys}"))
        };
        let older = vec![text(1, "identity = [\"/x\"]"), text(2, "lease = \"1s\"")];
        let set = PolicySet::new(text(3, "identity = [\"/y\"]"), older);
        let versions = |namespace| -> Vec<u32> {
            set.older_recipes(namespace, "a").iter().map(|old| old.version.policy).collect()
        };
        assert_eq!(versions("n"), [2, 1]);
        assert!(versions("default").is_empty());
    }

    #[test]
    fn a_new_hash_version_makes_every_recipe_older() {
        let (one, two) = ("identity = [\"/x\"]", "identity = [\"/x\", \"/y\"]");
        let older = vec![with_tool(1, one)];
        let set = PolicySet::with_hash_version(with_tool(2, two), older, 2);
        assert_eq!(found(&set, "a"), [(2, 1, 2), (1, 2, 1), (1, 1, 1)]);
        assert_eq!(set.active_recipe("default", "a").version, RecipeVersion { policy: 2, hash: 2 });
        // The tools that no version lists have but the one recipe.
        assert_eq!(found(&set, "other"), [(2, 1, 0)]);

        let idle = with_tool(2, "class = \"read_only\"");
        let set = PolicySet::with_hash_version(idle, vec![with_tool(1, one)], 2);
        assert_eq!(found(&set, "a"), [(1, 2, 1), (1, 1, 1)]);

        let set = PolicySet::with_hash_version(with_tool(1, one), vec![], 3);
        assert_eq!(found(&set, "a"), [(1, 2, 1), (1, 1, 1)]);
    }

    #[test]
    fn a_row_finds_its_own_recipe() {
        let (one, two) = ("identity = [\"/x\"]", "identity = [\"/x\", \"/y\"]");
        // Versions 1 and 2 have the same recipes, and one of them is given twice.
        let older = vec![with_tool(1, one), with_tool(2, one), with_tool(2, one)];
        let set = PolicySet::with_hash_version(with_tool(4, two), older, 2);
        assert_eq!(set.older().len(), 2);
        let of = |version, hash| {
            let version = RecipeVersion { policy: version, hash };
            let recipe = set.recipe_of(version, "default", "a")?;
            Some((recipe.hash_version, recipe.identity.len()))
        };
        assert_eq!(of(1, 1), Some((1, 1)));
        assert_eq!(of(2, 2), Some((2, 1)));
        assert_eq!(of(4, 1), Some((1, 2)));
        assert_eq!(of(3, 1), None);
        assert_eq!(of(0, 1), None);
    }

    #[test]
    fn a_policy_that_abandons_unsettled_rows_is_not_activated() {
        let rows = |names: &[(&str, &str)]| -> Vec<(String, String)> {
            names.iter().map(|(n, t)| ((*n).to_owned(), (*t).to_owned())).collect()
        };
        let effectful = with_tool(1, "");
        let idempotent = with_tool(2, "class = \"idempotent\"");
        let unsettled = rows(&[("default", "a"), ("default", "a"), ("n", "a"), ("n", "b")]);
        assert_eq!(
            lowered(&effectful, &idempotent, &unsettled),
            [
                "tool \"a\" in namespace \"default\" has unsettled intents, \
                 and its class would become idempotent",
                "tool \"a\" in namespace \"n\" has unsettled intents, \
                 and its class would become idempotent",
            ]
        );
        let empty: &[&str] = &[];
        assert_eq!(lowered(&effectful, &idempotent, &rows(&[("n", "b")])), empty);
        assert_eq!(lowered(&effectful, &effectful, &unsettled), empty);
        assert_eq!(lowered(&idempotent, &effectful, &unsettled), empty);
        assert_eq!(lowered(&idempotent, &with_tool(3, "class = \"read_only\""), &unsettled), empty);
        let unlisted = policy("version = 2\n[defaults]\nclass = \"read_only\"");
        assert_eq!(lowered(&effectful, &unlisted, &rows(&[("n", "b")])).len(), 1);
    }

    #[test]
    fn a_status_endpoint_stays_while_rows_are_unsettled() {
        let asked = "[tools.a.downstream.status]\ngrpc.target = \"http://m\"\nvisibility = \"1m\"";
        let of_n = "[namespaces.n.tools.a.downstream.status]\n\
                    grpc.target = \"http://n\"\nvisibility = \"1m\"";
        let moved = asked.replace("http://m", "https://elsewhere:1");
        let otherwise = "[tools.a.downstream.status]\n\
                         http.url = \"http://m/{downstream_key}\"\ncompleted_when = \"true\"";
        let dropped = |tool: &str, namespace: &str| {
            format!(
                "tool {tool:?} in namespace {namespace:?} has unsettled intents, \
                 and its status endpoint would be dropped"
            )
        };
        let (everywhere, in_n) = (dropped("a", "default"), dropped("a", "n"));
        let none: &[&str] = &[];
        // The active policy, the offered one, and why it is refused while rows of `a` are unsettled
        // in both namespaces.
        let table: &[(&str, &str, &[&str])] = &[
            (asked, asked, none),
            (asked, &moved, none),
            (asked, otherwise, none),
            // The table, the whole tool, and everything.
            (asked, "[tools.a]", &[&everywhere, &in_n]),
            (asked, "[tools.b]", &[&everywhere, &in_n]),
            (asked, "", &[&everywhere, &in_n]),
            // What one tenant has, and its whole section.
            (of_n, "[namespaces.n.tools.a]", &[&in_n]),
            (of_n, "[namespaces.n.defaults]", &[&in_n]),
            (of_n, "", &[&in_n]),
            (of_n, asked, none),
            (asked, of_n, &[&everywhere]),
            ("", asked, none),
            ("", "", none),
        ];
        let rows = ["default", "n"].map(|namespace| (namespace.to_owned(), "a".to_owned()));
        for (active, offered, expected) in table {
            let (active, offered) = (policy(active), policy(offered));
            let reasons = lowered(&active, &offered, &rows);
            assert_eq!(reasons, *expected, "{}\n→\n{}", active.text(), offered.text());
            assert_eq!(lowered(&active, &offered, &[]), none);
        }
    }
}
