use crate::policy::{
    Policy,
    file::tests::{mistakes, one},
};

const WHEN: &str = "completed_when = \"status == 200\"";
const URL: &str = "http.url = \"http://m/{downstream_key}\"";

/// A policy whose tool `a` has these lines in its status table, from line 2 on.
fn with(lines: &[&str]) -> String {
    format!("[tools.a.downstream.status]\n{}", lines.join("\n"))
}

#[test]
fn every_kind_of_mistake_is_named_with_its_line_and_key() {
    // The lines, the line of the mistake, its key below `status`, and a part of the words.
    let table: &[(&[&str], usize, &str, &str)] = &[
        // Types and keys.
        (&["http = 1", WHEN], 2, ".http", "must be a table, not a whole number"),
        (&["grpc = \"http://m\""], 2, ".grpc", "must be a table, not a string"),
        (&[URL, "completed_when = true"], 3, ".completed_when", "must be an expression such as"),
        (&[URL, WHEN, "confirmations = \"2\""], 4, ".confirmations", "must be a whole number"),
        (&[URL, WHEN, "confirmations = 0"], 4, ".confirmations", "must be from 1 to 100, not 0"),
        (&[URL, WHEN, "visibility = \"0s\""], 4, ".visibility", "must be longer than zero"),
        (&[URL, WHEN, "visibility = \"1us\""], 4, ".visibility", "must be 1ms or longer"),
        (&[URL, WHEN, "probe_on_begin = 1"], 4, ".probe_on_begin", "must be true or false"),
        (&[URL, WHEN, "visibilty = \"1s\""], 4, ".visibilty", "did you mean \"visibility\"?"),
        (&[URL, WHEN, "http.methd = \"GET\""], 4, ".http.methd", "did you mean \"method\"?"),
        (
            &["grpc = { target = \"http://m\", url = 1 }", "visibility = \"1s\""],
            2,
            ".grpc.url",
            "unknown",
        ),
        (&["http = {}", WHEN], 2, ".http", "has no url"),
        (&["grpc = {}", "visibility = \"1s\""], 2, ".grpc", "has no target"),
        (&[URL, WHEN, "http.method = \"HEAD\""], 4, ".http.method", "one of \"GET\", \"POST\""),
        (&[URL, WHEN, "http.method = \"get\""], 4, ".http.method", "not \"get\""),
        (&[URL, WHEN, "http.timeout = \"31s\""], 4, ".http.timeout", "must be 30s or shorter"),
        (&[URL, WHEN, "http.timeout = \"0s\""], 4, ".http.timeout", "must be longer than zero"),
        // URLs; more of them stand with the template.
        (&["http.url = \"file:///etc/passwd\"", WHEN], 2, ".http.url", "must begin with http://"),
        (
            &["http.url = \"http://169.254.169.254/{key}\"", WHEN],
            2,
            ".http.url",
            "must not be asked at 169.254.169.254: it is the metadata service of a cloud",
        ),
        (&["http.url = \"http://m/{kye}\"", WHEN], 2, ".http.url", "unknown placeholder {kye}"),
        (&["http.url = \"http://m/\"", WHEN], 2, ".http.url", "asks the same of every call"),
        (
            &["grpc.target = \"http://m/{key}\"", "visibility = \"1s\""],
            2,
            ".grpc.target",
            "must end after its host or port",
        ),
        (
            &["grpc.target = \"http://[::ffff:a9fe:a9fe]\"", "visibility = \"1s\""],
            2,
            ".grpc.target",
            "metadata service",
        ),
        // Headers.
        (&[URL, WHEN, "http.headers = []"], 4, ".http.headers", "must be a table, not an array"),
        (&[URL, WHEN, "http.headers.a = 1"], 4, ".http.headers.a", "must be the value of a header"),
        (
            &[URL, WHEN, "http.headers.host = \"x\""],
            4,
            ".http.headers.host",
            "by the ledger itself",
        ),
        (&[URL, WHEN, "http.headers.a = \"$T\""], 4, ".http.headers.a", "$$ for a dollar"),
        (
            &[URL, WHEN, "http.headers = { a = \"1\", A = \"2\" }"],
            4,
            ".http.headers.a",
            "the header is named twice",
        ),
        (
            &["grpc.target = \"http://m\"", "visibility = \"1s\"", "grpc.headers.te = \"x\""],
            4,
            ".grpc.headers.te",
            "by the ledger itself",
        ),
        // Expressions; more of them stand with the language.
        (
            &[URL, "completed_when = \"status =\""],
            3,
            ".completed_when",
            "column 8 of the expression",
        ),
        (
            &[URL, "completed_when = \"status\""],
            3,
            ".completed_when",
            "is of type int for an answer of 200, and must be true or false",
        ),
        (
            &[URL, WHEN, "running_when = \"body.state == 'queued'\"", "not_executed_when = \"1\""],
            5,
            ".not_executed_when",
            "is of type int for an answer of 200, and must be true or false",
        ),
        (
            &[URL, WHEN, "running_when = \"bdy.state == 'queued'\""],
            4,
            ".running_when",
            "column 1 of the expression: unknown variable bdy; did you mean \"body\"?",
        ),
        (&[URL, WHEN, "result = \"\""], 4, ".result", "must be an expression"),
        (&[URL, WHEN, "key_at = \"body.key(\""], 4, ".key_at", "column 10 of the expression"),
        (&[URL, WHEN, "ref_at = \"ids(body)\""], 4, ".ref_at", "unknown function ids"),
        // Between keys.
        (&[WHEN], 1, "", "needs http or grpc"),
        (&["confirmations = 3"], 1, "", "needs http or grpc"),
        (
            &[URL, WHEN, "grpc.target = \"http://m\""],
            4,
            ".grpc",
            "the same table has http: give one of them",
        ),
        (&[URL], 2, ".http", "needs completed_when"),
        (
            &[URL, WHEN, "not_executed_when = \"status == 404\""],
            4,
            ".not_executed_when",
            "needs visibility",
        ),
        (&["grpc.target = \"http://m\""], 2, ".grpc", "needs visibility"),
        (
            &["grpc.target = \"http://m\"", "visibility = \"1s\"", WHEN],
            4,
            ".completed_when",
            "means nothing with grpc",
        ),
        (
            &["grpc.target = \"http://m\"", "visibility = \"1s\"", "key_at = \"body.key\""],
            4,
            ".key_at",
            "means nothing with grpc",
        ),
        (
            &["http.url = \"http://m?order={business.order}\"", WHEN],
            2,
            ".http",
            "needs key_at, since the URL does not ask by {downstream_key}",
        ),
        (&["http.url = \"http://m/{downstream_ref}\"", WHEN], 2, ".http", "needs key_at"),
        (&["http.url = \"http://m/{key}\"", WHEN], 2, ".http", "needs key_at"),
    ];
    for (lines, line, key, part) in table {
        one(&with(lines), *line, &format!("tools.a.downstream.status{key}"), part);
    }
    one("[tools.a.downstream]\nstatus = 1", 2, "tools.a.downstream.status", "must be a table");
    one(
        "[tools.a.downstream]\nprobe_on_begin = true",
        2,
        "tools.a.downstream.probe_on_begin",
        "unknown key",
    );
}

#[test]
fn a_broken_value_is_told_once_and_not_missed_elsewhere() {
    for lines in [
        &["http = { url = \"http://m/{key\" }"][..],
        &["http.url = 1", "not_executed_when = \"status == 404\""],
        &["grpc.target = \"m\""],
        &[URL, "completed_when = \"x\""],
        &[URL, WHEN, "not_executed_when = \"status == 404\"", "visibility = \"soon\""],
        &["http.url = \"http://m?ref={downstream_ref}\"", WHEN, "key_at = \"x\""],
    ] {
        assert_eq!(mistakes(&with(lines)).len(), 1, "{:?}", mistakes(&with(lines)));
    }
}

#[test]
fn what_is_right_is_let_pass() {
    for lines in [
        &[URL, WHEN][..],
        &[URL, WHEN, "visibility = \"1ms\""],
        &[URL, WHEN, "http.timeout = \"30s\"", "http.method = \"POST\""],
        &["grpc = { target = \"https://m:1/\", timeout = \"5s\" }", "visibility = \"1m\""],
        &["grpc.target = \"http://m\"", "grpc.headers.a = \"${B}\"", "visibility = \"1m\""],
        &["http.url = \"http://localhost/{key}\"", WHEN, "key_at = \"body.key\""],
        &["http.url = \"http://m/{downstream_key}?o={business.order}\"", WHEN],
    ] {
        assert_eq!(mistakes(&with(lines)), [], "{lines:?}");
    }
    assert_eq!(mistakes("[tools.a.downstream.status]").len(), 1);
}

#[test]
fn a_tenant_has_single_keys_otherwise_and_places_whole() {
    let policy = |own: &str| {
        let base = "\
[tools.a.downstream.status]
http = { url = \"http://m/{downstream_key}\", headers = { a = \"${T}\" }, timeout = \"3s\" }
completed_when = \"status == 200\"
not_executed_when = \"status == 404\"
visibility = \"2m\"
[namespaces.n.tools.a.downstream.status]
";
        let text = format!("{base}{own}");
        Policy::from_text(&text).unwrap_or_else(|error| panic!("{error}"))
    };
    let endpoint = |policy: &Policy, namespace: &str| {
        let endpoint = policy.status(namespace, "a").expect("it can be asked");
        (**endpoint).clone()
    };
    let rule = |policy: &Policy, namespace: &str| {
        policy.tool(namespace, "a").downstream.status.expect("it can be asked")
    };

    let it = policy("confirmations = 5\nprobe_on_begin = true");
    assert_eq!(endpoint(&it, "n"), endpoint(&it, "default"));
    assert_eq!((rule(&it, "n").confirmations, rule(&it, "n").probe_on_begin), (5, true));
    assert_eq!(rule(&it, "default").confirmations, 2);
    assert_eq!(rule(&it, "n").visibility, rule(&it, "default").visibility);

    // Only the endpoint differs, and that is a difference.
    let it = policy("running_when = \"status == 202\"");
    assert_eq!(rule(&it, "n"), rule(&it, "default"));
    assert_ne!(endpoint(&it, "n"), endpoint(&it, "default"));

    // The table of another place brings nothing of the first along.
    let it = policy("http.url = \"http://n/{downstream_key}\"");
    let (own, base) = (endpoint(&it, "n"), endpoint(&it, "default"));
    assert_eq!((own.origin.as_str(), base.origin.as_str()), ("http://n:80", "http://m:80"));
    assert_eq!((own.headers.len(), base.headers.len()), (0, 1));
    assert_eq!((own.timeout.as_secs(), base.timeout.as_secs()), (2, 3));

    // The more specific protocol counts, and inherited rules do not disturb it.
    let it = policy("grpc.target = \"https://n\"");
    assert_eq!(endpoint(&it, "n").origin, "https://n:443");
    let text = "\
[tools.a.downstream.status]
grpc.target = \"http://m\"
visibility = \"1s\"
[namespaces.n.tools.a.downstream.status]
http.url = \"http://n/{downstream_key}\"
";
    one(text, 5, "namespaces.n.tools.a.downstream.status.http", "needs completed_when");
    let text = format!("{text}completed_when = \"status == 200\"");
    assert_eq!(mistakes(&text), []);
}

#[test]
fn a_mistake_between_sections_is_told_where_it_stands() {
    let text = "\
[tools.a.downstream.status]
http.url = \"http://m/{downstream_key}\"
completed_when = \"status == 200\"
[namespaces.n.tools.a.downstream.status]
not_executed_when = \"status == 404\"
";
    one(text, 5, "namespaces.n.tools.a.downstream.status.not_executed_when", "needs visibility");
    let text = "\
[tools.a.downstream.status]
http.url = \"http://m/{downstream_key}\"
[namespaces.n.tools.a.downstream.status]
completed_when = \"status == 200\"
";
    one(text, 2, "tools.a.downstream.status.http", "needs completed_when");
    one(
        "[namespaces.n.tools.a.downstream.status]\nprobe_on_begin = true",
        1,
        "namespaces.n.tools.a.downstream.status",
        "needs http or grpc",
    );
}
