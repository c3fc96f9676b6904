use proptest::prelude::*;

use super::*;

/// The mistakes of a text, each as its line, column and key, and its problem.
pub(super) fn mistakes(text: &str) -> Vec<(usize, usize, String, String)> {
    let mistakes = parse(text).err().unwrap_or_default();
    mistakes.into_iter().map(|m| (m.line, m.column, m.key, m.problem)).collect()
}

/// Asserts that a text has exactly one mistake, at `line` and `key`, whose problem contains `part`.
#[track_caller]
pub(super) fn one(text: &str, line: usize, key: &str, part: &str) {
    let found = mistakes(text);
    let [(found_line, _, found_key, problem)] = &found[..] else {
        panic!("{} mistakes in\n{text}\n{found:#?}", found.len());
    };
    assert_eq!((*found_line, found_key.as_str()), (line, key), "{text}\n{problem}");
    assert!(problem.contains(part), "{problem:?} has no {part:?}");
}

#[test]
fn every_kind_of_mistake_is_named_with_its_line_and_key() {
    let long = "x".repeat(256);
    let table: &[(&str, usize, &str, &str)] = &[
        // Keys.
        ("verison = 1", 1, "verison", "unknown key; did you mean \"version\"?"),
        ("colour = 1", 1, "colour", "unknown key"),
        ("[defaults]\nleese = \"1s\"", 2, "defaults.leese", "did you mean \"lease\"?"),
        ("[tools.a]\n\nleese = 3", 3, "tools.a.leese", "unknown key; did you mean \"lease\"?"),
        ("[tools.a.downstream]\nwindo = 1", 2, "tools.a.downstream.windo", "\"window\"?"),
        ("[tools]\na.downstream.x = 1", 2, "tools.a.downstream.x", "unknown key"),
        ("[namespaces.n]\ntool = 1", 2, "namespaces.n.tool", "did you mean \"tools\"?"),
        ("[namespaces.n.tools.a]\nx = 1", 2, "namespaces.n.tools.a.x", "unknown key"),
        ("[namespaces.n.defaults]\nx = 1", 2, "namespaces.n.defaults.x", "unknown key"),
        ("[defaults]\nidentity = []", 2, "defaults.identity", "may stand in a tool only"),
        ("[defaults.downstream]", 1, "defaults.downstream", "may stand in a tool only"),
        ("[tools.a]\nunlisted_tools = \"allow\"", 2, "tools.a.unlisted_tools", "in defaults only"),
        // Types.
        ("defaults = 1", 1, "defaults", "must be a table, not a whole number"),
        ("tools = []", 1, "tools", "must be a table, not an array"),
        ("[[tools.a]]", 1, "tools.a", "must be a table, not an array"),
        ("namespaces.n = \"x\"", 1, "namespaces.n", "must be a table, not a string"),
        (
            "[defaults]\nlease = 60",
            2,
            "defaults.lease",
            "must be a duration such as \"60s\", not a",
        ),
        ("[defaults]\nclass = 1.5", 2, "defaults.class", "not a fraction"),
        (
            "[defaults]\nretry_failed = \"true\"",
            2,
            "defaults.retry_failed",
            "must be true or false",
        ),
        ("[defaults]\nmax_attempts = true", 2, "defaults.max_attempts", "not a boolean"),
        ("[defaults]\nmax_result_bytes = []", 2, "defaults.max_result_bytes", "must be a size"),
        ("[tools.a]\nidentity = \"/a\"", 2, "tools.a.identity", "must be an array of pointers"),
        ("[tools.a]\nidentity = [1]", 2, "tools.a.identity[0]", "must be a JSON Pointer"),
        ("[tools.a]\nfree_text = \"/a\"", 2, "tools.a.free_text", "must be an array of pointers"),
        ("[tools.a]\nfree_text = [{}]", 2, "tools.a.free_text[0]", "not a table"),
        ("[tools.a]\ncheck_with = 1", 2, "tools.a.check_with", "must be the name of a tool"),
        ("[tools.a]\nlease = 1979-05-27", 2, "tools.a.lease", "not a date"),
        // Versions.
        ("version = 0", 1, "version", "must be from 1 to 2147483647, not 0"),
        ("version = -1", 1, "version", "not -1"),
        ("version = 2147483648", 1, "version", "must be from 1 to 2147483647"),
        ("version = \"1\"", 1, "version", "must be a whole number, not a string"),
        // Words.
        ("[defaults]\nclass = \"effectfull\"", 2, "defaults.class", "did you mean \"effectful\"?"),
        ("[defaults]\nscope = \"tenant\"", 2, "defaults.scope", "one of \"run\", \"namespace\""),
        (
            "[defaults]\nunlisted_tools = \"\"",
            2,
            "defaults.unlisted_tools",
            "\"allow\", \"refuse\"",
        ),
        (
            "[tools.a.downstream]\nkey_format = \"uid\"",
            2,
            "tools.a.downstream.key_format",
            "did you mean \"uuid\"?",
        ),
        // Durations.
        ("[defaults]\nlease = \"soon\"", 2, "defaults.lease", "\"soon\" is not a duration"),
        ("[defaults]\nlease = \"60\"", 2, "defaults.lease", "time unit needed"),
        ("[defaults]\nlease = \"\"", 2, "defaults.lease", "is not a duration"),
        ("[defaults]\nlease = \"0s\"", 2, "defaults.lease", "must be longer than zero"),
        ("[defaults]\ngive_up_after = \"0s\"", 2, "defaults.give_up_after", "longer than zero"),
        ("[defaults]\nlease_max = \"0s\"", 2, "defaults.lease_max", "must be longer than zero"),
        ("[defaults]\nretention = \"0s\"", 2, "defaults.retention", "must be longer than zero"),
        ("[defaults]\nlease = \"1us\"", 2, "defaults.lease", "must be 1ms or longer"),
        ("[defaults]\ntombstone = \"101years\"", 2, "defaults.tombstone", "100 years or shorter"),
        (
            "[tools.a.downstream]\ndeduplicates = true\nwindow = \"0s\"",
            3,
            "tools.a.downstream.window",
            "must be longer than zero",
        ),
        // Numbers and sizes.
        (
            "[defaults]\nmax_attempts = 0",
            2,
            "defaults.max_attempts",
            "must be from 1 to 10000, not 0",
        ),
        ("[tools.a]\nmax_attempts = -3", 2, "tools.a.max_attempts", "not -3"),
        (
            "[defaults]\nmax_result_bytes = \"many\"",
            2,
            "defaults.max_result_bytes",
            "is not a size",
        ),
        (
            "[defaults]\nmax_result_bytes = \"17MiB\"",
            2,
            "defaults.max_result_bytes",
            "16.0 MiB or less",
        ),
        ("[defaults]\nmax_result_bytes = -1", 2, "defaults.max_result_bytes", "not -1"),
        // Pointers.
        ("[tools.a]\nidentity = [\"id\"]", 2, "tools.a.identity[0]", "must be empty or begin with"),
        ("[tools.a]\nidentity = [\"/a~2\"]", 2, "tools.a.identity[0]", "must be written `~0`"),
        ("[tools.a]\nidentity = [\"\"]", 2, "tools.a.identity[0]", "means all arguments"),
        ("[tools.a]\nfree_text = [\n\"/a\",\n\"b\"]", 4, "tools.a.free_text[1]", "begin with"),
        ("[tools.a]\nidentity = [\n\"/a\",\n\"/a\"]", 4, "tools.a.identity[1]", "named twice"),
        (
            "[tools.a]\nidentity = [\"/a\", { pointer = \"/a\", normalize = [\"trim\"] }]",
            2,
            "tools.a.identity[1]",
            "the pointer is named twice",
        ),
        ("[tools.a]\nfree_text = [\"/a\", \"/a\"]", 2, "tools.a.free_text[1]", "named twice"),
        (
            "[tools.a]\nidentity = [\"/b\", \"/a\"]\nfree_text = [\"/a\"]",
            3,
            "tools.a.free_text[0]",
            "also stands in tools.a.identity[1]",
        ),
        ("[tools.a]\nidentity = [{}]", 2, "tools.a.identity[0]", "has no pointer"),
        (
            "[tools.a]\nidentity = [{ pointer = \"/a\", normalise = [] }]",
            2,
            "tools.a.identity[0].normalise",
            "unknown key; did you mean \"normalize\"?",
        ),
        (
            "[tools.a]\nidentity = [\"/b\", \"/c\", { pointer = \"/a\", normalize = \"trim\" }]",
            2,
            "tools.a.identity[2].normalize",
            "must be an array of words",
        ),
        (
            "[tools.a]\nidentity = [{ pointer = \"/a\", normalize = [\"trim\", \"lower\"] }]",
            2,
            "tools.a.identity[0].normalize[1]",
            "must be one of \"trim\", \"lowercase\", \"collapse_whitespace\", not \"lower\"",
        ),
        (
            "[tools.a]\nidentity = [{ pointer = \"/a\", normalize = [\"trim\", \"trim\"] }]",
            2,
            "tools.a.identity[0].normalize[1]",
            "named twice",
        ),
        // Names.
        ("[tools.\"\"]", 1, "tools.\"\"", "must not be empty"),
        ("[tools.\"a\\u0007\"]", 1, "tools.\"a\\u{7}\"", "must not have control characters"),
        ("[namespaces.\"a\\n\"]", 1, "namespaces.\"a\\n\"", "the name of a namespace must not"),
        (&format!("[tools.{long}]"), 1, &format!("tools.{long}"), "255 bytes or less, not 256"),
        ("[tools.a]\ncheck_with = \"\"", 2, "tools.a.check_with", "must not be empty"),
        ("[tools.a]\ncheck_with = \"a\"", 2, "tools.a.check_with", "names itself"),
        (
            "[namespaces.n.tools.a]\ncheck_with = \"a\"",
            2,
            "namespaces.n.tools.a.check_with",
            "itself",
        ),
        // Between keys.
        ("[defaults]\nlease = \"2h\"", 2, "defaults.lease", "lease 2h is longer than lease_max 1h"),
        ("[defaults]\nlease_max = \"30s\"", 2, "defaults.lease_max", "lease 1m is longer than"),
        (
            "[defaults]\nlease_max = \"5m\"\n[tools.a]\nlease = \"10m\"",
            4,
            "tools.a.lease",
            "lease 10m is longer than lease_max 5m",
        ),
        (
            "[defaults]\nlease = \"10m\"\n[tools.a]\nlease_max = \"5m\"",
            4,
            "tools.a.lease_max",
            "lease 10m is longer than lease_max 5m",
        ),
        (
            "[tools.a]\nlease = \"10m\"\n[namespaces.n.tools.a]\nlease_max = \"5m\"",
            4,
            "namespaces.n.tools.a.lease_max",
            "lease 10m is longer than lease_max 5m",
        ),
        (
            "[tools.a]\nlease = \"10m\"\n[namespaces.n.defaults]\nlease_max = \"5m\"",
            2,
            "tools.a.lease",
            "lease 10m is longer than lease_max 5m in namespace \"n\"",
        ),
        (
            "[tools.a]\nretention = \"1h\"\n[tools.a.downstream]\ndeduplicates = true\nwindow = \"2h\"",
            2,
            "tools.a.retention",
            "retention 1h is shorter than the downstream window 2h",
        ),
        (
            "[tools.a]\nretention = \"30m\"",
            2,
            "tools.a.retention",
            "retention 30m is shorter than lease_max 1h",
        ),
        (
            "[defaults]\nretention = \"2h\"\n[namespaces.n.tools.a]\nlease_max = \"3h\"",
            4,
            "namespaces.n.tools.a.lease_max",
            "retention 2h is shorter than lease_max 3h",
        ),
        (
            "[tools.a.downstream]\ndeduplicates = true\nwindow = \"60d\"",
            3,
            "tools.a.downstream.window",
            "retention 30d is shorter than the downstream window 60d",
        ),
        (
            "[tools.a.downstream]\ndeduplicates = true",
            2,
            "tools.a.downstream.deduplicates",
            "needs a window",
        ),
        (
            "[tools.a.downstream]\nwindow = \"1h\"",
            2,
            "tools.a.downstream.window",
            "means nothing without deduplicates = true",
        ),
        (
            "[tools.a.downstream]\ndeduplicates = false\nwindow = \"1h\"",
            3,
            "tools.a.downstream.window",
            "means nothing without deduplicates = true",
        ),
        (
            "[tools.a]\nidentity = [\"/a\"]\n[namespaces.n.tools.a]\nfree_text = [\"/a\"]",
            4,
            "namespaces.n.tools.a.free_text[0]",
            "also stands in tools.a.identity[0]",
        ),
        (
            "[tools.a]\nfree_text = [\"/a\"]\n[namespaces.n.tools.a]\nidentity = [\"/a\"]",
            4,
            "namespaces.n.tools.a.identity[0]",
            "also stands in tools.a.free_text[0]",
        ),
        // Broken TOML.
        ("[defaults]\nlease = 60s", 2, "defaults.lease", "string values must be quoted"),
        ("[defaults]\nlease = \"60s", 2, "defaults.lease", "invalid basic string"),
        ("[tools.a]\nscope = \"run\"\nscope = \"run\"", 3, "tools.a.scope", "duplicate key"),
        ("[defaults]\nlease", 2, "", "key with no value"),
        ("[tools.a]\n[tools.a]", 2, "tools.a", "duplicate key"),
        ("[tools]\na = { scope = \"run\", scope = \"run\" }", 2, "tools.a.scope", "duplicate key"),
        ("= 1", 1, "\"\"", "cannot be empty"),
    ];
    for (text, line, key, part) in table {
        one(text, *line, key, part);
    }
}

#[test]
fn what_is_not_enforced_yet_is_refused_wherever_it_stands() {
    let in_tool = [("keep_arguments", "keep_arguments = true")];
    for (key, line) in in_tool {
        for place in ["tools.a", "namespaces.n.tools.a"] {
            one(&format!("[{place}]\n{line}"), 2, &format!("{place}.{key}"), NOT_ENFORCED);
        }
    }
    for place in ["defaults", "namespaces.n.defaults"] {
        let text = format!("[{place}]\nkeep_arguments = true");
        one(&text, 2, &format!("{place}.keep_arguments"), NOT_ENFORCED);
    }
    let kept = mistakes("[defaults]\nkeep_arguments = true").remove(0).3;
    assert_eq!(
        kept,
        "keep_arguments = true is not enforced yet by this version; remove it, or wait for the version that does"
    );
}

#[test]
fn mistakes_in_gates_are_told_where_they_stand() {
    let table = [
        ("approval = 1", "approval", "must be a table"),
        ("approval.wen = \"true\"", "approval.wen", "did you mean"),
        ("approval.when = true", "approval.when", "an expression such as"),
        ("approval.when = \"args.amount >\"", "approval.when", "expression"),
        ("approval.when = \"arg.amount > 1\"", "approval.when", "unknown variable arg"),
        ("approval.when = \"status == 200\"", "approval.when", "unknown variable status"),
        ("approval.expires = \"0s\"", "approval.expires", "longer than zero"),
        ("approval.valid_for = 60", "approval.valid_for", "a duration such as"),
        ("limit_per_run = 0", "limit_per_run", "from 1 to 10000"),
        ("limit_per_run = 10_001", "limit_per_run", "from 1 to 10000"),
        ("halted = 1", "halted", "true or false"),
        ("look_alike = []", "look_alike", "must be a table"),
        ("look_alike.window = \"1m\"", "look_alike", "needs a subject"),
        ("look_alike.subject = []", "look_alike.subject", "must name a place"),
        ("look_alike.subject = [\"to\"]", "look_alike.subject[0]", "to"),
        (
            "look_alike = { subject = [\"/to\"], action = \"refused\" }",
            "look_alike.action",
            "one of \"warn\", \"await_approval\", \"refuse\"",
        ),
    ];
    for place in ["tools.a", "namespaces.n.tools.a"] {
        for (line, key, part) in table {
            one(&format!("[{place}]\n{line}"), 2, &format!("{place}.{key}"), part);
        }
    }
    for key in
        ["approval = {}", "limit_per_run = 1", "halted = true", "look_alike.subject = [\"/a\"]"]
    {
        let name = key.split([' ', '.']).next().unwrap();
        one(&format!("[defaults]\n{key}"), 2, &format!("defaults.{name}"), "in a tool only");
    }
}

#[test]
fn a_gate_before_calls_that_leave_no_record_is_refused() {
    for (gate, key) in [
        ("approval = {}", "approval"),
        ("limit_per_run = 5", "limit_per_run"),
        ("look_alike.subject = [\"/to\"]", "look_alike"),
    ] {
        let problem = "means nothing for class idempotent";
        let text = format!("[tools.a]\n{gate}\nclass = \"idempotent\"");
        one(&text, 2, &format!("tools.a.{key}"), problem);
        let text = format!("[defaults]\nclass = \"idempotent\"\n[tools.a]\n{gate}");
        one(&text, 4, &format!("tools.a.{key}"), problem);
        // A tenant that lowers the class of what has a gate.
        let text = format!("[tools.a]\n{gate}\n[namespaces.n.tools.a]\nclass = \"idempotent\"");
        one(&text, 4, "namespaces.n.tools.a.class", problem);
    }
}

#[test]
fn what_is_harmless_is_let_pass() {
    let table = [
        "",
        "version = 0x7fff_ffff",
        "\u{feff}version = 2\r\n[defaults]\r\nlease = \"1s\"\r\n",
        "[defaults]\nkeep_arguments = false",
        "[tools.a]\nkeep_arguments = false\ndownstream.same_transaction = false",
        "[tools.a]\ndownstream.same_transaction = true",
        "[defaults]\nlease_max = \"1h\"\nretention = \"1h\"",
        "[tools.a]\nclass = \"read_only\"\nidentity = [\"/a\"]",
        "[tools.a]\nidentity = []\nfree_text = []",
        "[tools.a]\nidentity = [\"/a/0/b~1c~0\"]\nfree_text = [\"/a/0\"]",
        "[defaults]\nresend_window = \"0s\"\ntombstone = \"0s\"\nmax_result_bytes = \"0B\"",
        "[defaults]\nmax_result_bytes = 1024",
        "[defaults]\nlease = \"1h\"\nlease_max = \"1h\"",
        "[tools.\"mail.send é\"]\nlease = \"1m 30s\"",
        // A tenant whose provider does not deduplicate inherits a window and switches it off.
        "[tools.a.downstream]\ndeduplicates = true\nwindow = \"1h\"\n\
         [namespaces.n.tools.a.downstream]\ndeduplicates = false",
    ];
    for text in table {
        assert_eq!(mistakes(text), [], "{text}");
    }
}

#[test]
fn all_mistakes_are_told_in_the_order_of_their_lines() {
    let text = "\
version = 0
[tools.send]
lease = 60s
leese = \"1s\"
identity = [\"to\", { pointer = \"/a\", normalize = [\"trin\", \"up\"] }]
class = \"any\"
approval = 1
[defaults]
scope = 'x'
";
    let found: Vec<_> =
        mistakes(text).into_iter().map(|(line, column, key, _)| (line, column, key)).collect();
    let expected = [
        (1, 11, "version"),
        (3, 9, "tools.send.lease"),
        (4, 1, "tools.send.leese"),
        (5, 13, "tools.send.identity[0]"),
        (5, 50, "tools.send.identity[1].normalize[0]"),
        (5, 58, "tools.send.identity[1].normalize[1]"),
        (6, 9, "tools.send.class"),
        (7, 12, "tools.send.approval"),
        (9, 9, "defaults.scope"),
    ];
    assert_eq!(found, expected.map(|(line, column, key)| (line, column, key.to_owned())));
}

#[test]
fn a_broken_value_is_told_once_and_not_compared() {
    one("[defaults]\nlease = \"x\"\nlease_max = \"30s\"", 2, "defaults.lease", "duration");
    one(
        "[tools.a.downstream]\ndeduplicates = true\nwindow = 1",
        3,
        "tools.a.downstream.window",
        "duration",
    );
    one(
        "[tools.a.downstream]\ndeduplicates = 1\nwindow = \"1h\"",
        2,
        "tools.a.downstream.deduplicates",
        "true or false",
    );
}

#[test]
fn an_inherited_conflict_is_told_once_and_one_of_a_tenant_for_each() {
    let text = "\
[defaults]
lease = \"2h\"
[tools.a]
[tools.b]
[namespaces.m.tools.a]
[namespaces.n.defaults]
";
    one(text, 2, "defaults.lease", "lease 2h is longer than lease_max 1h");

    let text = "\
[tools.a]
lease = \"10m\"
[namespaces.m.defaults]
lease_max = \"5m\"
[namespaces.n.defaults]
lease_max = \"5m\"
";
    let problems: Vec<String> = mistakes(text).into_iter().map(|m| m.3).collect();
    let problem = "lease 10m is longer than lease_max 5m in namespace";
    assert_eq!(problems, [format!("{problem} \"m\""), format!("{problem} \"n\"")]);
}

#[test]
fn a_mistake_reads_as_a_line() {
    let told = |text: &str| parse(text).unwrap_err()[0].to_string();
    assert_eq!(
        told("\n[tools.send_email]\nleese = \"1s\""),
        "line 3: tools.send_email.leese: unknown key; did you mean \"lease\"?"
    );
    assert_eq!(told("[defaults]\nlease"), "line 2: key with no value, expected `=`");
}

#[test]
fn every_known_key_is_read() {
    let keys = [&COMMON_KEYS[..], &TOOL_ONLY_KEYS].concat();
    for key in keys {
        assert!(!mistakes(&format!("[tools.a]\n{key} = 1970-01-01")).is_empty(), "{key}");
    }
    for key in DEFAULTS_ONLY_KEYS {
        assert!(!mistakes(&format!("[defaults]\n{key} = 1970-01-01")).is_empty(), "{key}");
    }
    for key in DOWNSTREAM_KEYS {
        assert!(
            !mistakes(&format!("[tools.a.downstream]\n{key} = 1970-01-01")).is_empty(),
            "{key}"
        );
    }
    for key in status::STATUS_KEYS {
        let line = format!("{key} = 1970-01-01");
        let found = mistakes(&format!("[tools.a.downstream.status]\n{line}"));
        let named = format!("tools.a.downstream.status.{key}");
        assert!(found.iter().any(|mistake| mistake.2 == named), "{key}: {found:?}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..40, 0_usize..12), 1..6)
    ) {
        const PIECES: [&str; 12] = [
            "", "\n", "[", "]", "{ ", "=", "\"", "'''", "é = 1", "[tools.a]\n", "\0", "identity",
        ];
        let mut text: Vec<char> = include_str!("../../../examples/policy.toml").chars().collect();
        for (at, length, piece) in cuts {
            let from = at.index(text.len() + 1);
            let to = (from + length).min(text.len());
            text.splice(from..to, PIECES[piece].chars());
        }
        let text: String = text.into_iter().collect();
        if let Err(mistakes) = parse(&text) {
            let lines = text.matches('\n').count() + 1;
            prop_assert!(!mistakes.is_empty());
            prop_assert!(mistakes.iter().all(|m| (1..=lines).contains(&m.line) && m.column > 0));
        }
    }
}

#[test]
fn what_will_surprise_is_a_warning_with_its_line_and_key() {
    let told = |text: &str| -> Vec<String> {
        parse(text).unwrap().warnings.iter().map(ToString::to_string).collect()
    };
    assert_eq!(told("version = 1\n[defaults]\ntombstone = \"1h\""), Vec::<String>::new());
    let text = "version = 1\n[namespaces.n.defaults]\ntombstone = \"59m\"\n[tools.a]\n\
                tombstone = \"0s\"\n[namespaces.n.tools.a]\ntombstone = \"1ms\"";
    let [own, everywhere, tool] = &told(text)[..] else { panic!("{:?}", told(text)) };
    let part = "which a key is remembered at least after its result is pruned; it counts as 1h";
    let line = format!("line 3: namespaces.n.defaults.tombstone: 59m is less than 1h, {part}");
    assert_eq!(*own, line);
    assert!(everywhere.starts_with("line 5: tools.a.tombstone: 0s is "), "{everywhere}");
    assert!(tool.starts_with("line 7: namespaces.n.tools.a.tombstone: 1ms is "), "{tool}");
    let [version] = &told("[tools.a]")[..] else { panic!("one warning") };
    assert!(version.starts_with("line 1: version: is not given and counts as 1; "), "{version}");
}
