use super::*;
use crate::policy::{
    Policy,
    status::{Face, HttpFace},
};

const RULES: &str = r#"
completed_when = "status == 200 && body.state == 'sent'"
not_executed_when = "status == 404"
running_when = "body.state in ['queued', 'sending']"
"#;

/// An endpoint that is asked by our key, or with `business` by something else, with these rules.
fn face(url: &str, rules: &str) -> HttpFace {
    let text = format!(
        "[tools.a.downstream.status]\nhttp.url = \"http://m/{url}\"\nvisibility = \"1m\"\n{rules}"
    );
    let policy = Policy::from_text(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    match &policy.status("default", "a").expect("the tool can be asked").face {
        Face::Http(http) => HttpFace::clone(http),
        Face::Grpc(_) => panic!("it is asked over HTTP"),
    }
}

fn by_key(rules: &str) -> HttpFace {
    face("{downstream_key}", rules)
}

fn question() -> Question {
    Question {
        downstream_key: "k1".to_owned(),
        downstream_ref: None,
        key: "00".to_owned(),
        business: BTreeMap::new(),
        tool: "a".to_owned(),
        namespace: "default".to_owned(),
    }
}

const JSON: &str = "application/json";

fn judged_as(face: &HttpFace, status: u16, content_type: &str, body: &[u8], cut: bool) -> Answer {
    let headers = [
        ("Content-Type".to_owned(), content_type.to_owned()),
        ("X-State".to_owned(), "a".to_owned()),
        ("x-state".to_owned(), "b".to_owned()),
    ];
    let headers = if content_type.is_empty() { &headers[1..] } else { &headers[..] };
    face.judge(&HttpAnswer { status, headers, body, cut }, &question(), 1024)
}

fn judged(face: &HttpFace, status: u16, body: &str) -> Answer {
    judged_as(face, status, JSON, body.as_bytes(), false)
}

/// An answer in a word, with its references.
fn told(answer: &Answer) -> String {
    match answer {
        Answer::Taken { .. } => unreachable!("a status endpoint knows no other keys"),
        Answer::Executed { downstream_ref, .. } => {
            format!("executed {}", downstream_ref.as_deref().unwrap_or("-"))
        }
        Answer::Several { downstream_refs, .. } => {
            format!("several {}", downstream_refs.join(" "))
        }
        Answer::Absent => "absent".to_owned(),
        Answer::Running => "running".to_owned(),
        Answer::Unmapped { note } => format!("unmapped {note}"),
        Answer::Unreachable { note } => format!("unreachable {note}"),
    }
}

#[track_caller]
fn says(answer: &Answer, expected: &str) {
    let told = told(answer);
    assert!(told.starts_with(expected), "{told:?} does not begin with {expected:?}");
}

fn result(answer: &Answer) -> (&[u8], &str) {
    let (Answer::Executed { result, .. } | Answer::Several { result, .. }) = answer else {
        panic!("{answer:?}");
    };
    (result.bytes.as_deref().expect("it has a result"), &result.content_type)
}

#[test]
fn what_says_nothing_of_the_effect_reaches_no_rule() {
    let any = by_key("completed_when = \"true\"");
    let gone = by_key("completed_when = \"false\"\nnot_executed_when = \"true\"");
    let table: &[(u16, &str, &str, &str)] = &[
        (500, JSON, "{}", "unreachable http 500: {}"),
        (502, "text/html", "<html>", "unreachable http 502: <html>"),
        (503, "", "", "unreachable http 503: no body"),
        (599, JSON, "{}", "unreachable http 599"),
        (401, JSON, "{}", "unreachable http 401"),
        (407, JSON, "{}", "unreachable http 407"),
        (408, JSON, "{}", "unreachable http 408"),
        (429, JSON, "{}", "unreachable http 429"),
        (301, JSON, "{}", "unmapped http 301: a redirect"),
        (302, "text/html", "<html>", "unmapped http 302: a redirect"),
        (304, "", "", "unmapped http 304: a redirect"),
        (200, "text/html", "{}", "unmapped http 200: a page for people: {}"),
        (404, "text/html; charset=utf-8", "x", "unmapped http 404: a page for people: x"),
        (404, "TEXT/HTML", "", "unmapped http 404: a page for people: no body"),
        (200, "application/xhtml+xml", "{}", "unmapped http 200: a page for people"),
        (404, "", "<!doctype html>", "unmapped http 404: a page for people: <!doctype html>"),
        (404, "text/plain", "\r\n <p>", "unmapped http 404: a page for people: <p>"),
        (404, "", "\u{feff}<p>", "unmapped http 404: a page for people"),
        (200, "application/json, text/html", "{}", "unmapped http 200: a page for people"),
        (404, "application/xml", "<state/>", "unmapped http 404: a page for people"),
        // Whatever it is declared as.
        (200, JSON, "<html>", "unmapped http 200: a page for people: <html>"),
        (404, "application/problem+json", "<", "unmapped http 404: a page for people: <"),
    ];
    for (status, content_type, body, expected) in table {
        for face in [&any, &gone] {
            says(&judged_as(face, *status, content_type, body.as_bytes(), false), expected);
        }
    }
    for face in [&any, &gone] {
        let cut = judged_as(face, 200, JSON, b"{}", true);
        says(&cut, "unmapped http 200: an answer that is too long");
    }
    for status in [200, 201, 204, 400, 403, 404, 409, 410, 422, 425] {
        says(&judged(&gone, status, "{}"), "absent");
    }
}

#[test]
fn exactly_one_rule_claims_an_answer() {
    let by_rules = by_key(RULES);
    let twice = by_key(
        "completed_when = \"body.a\"\nnot_executed_when = \"body.b\"\nrunning_when = \"body.c\"",
    );
    let table: &[(&HttpFace, u16, &str, &str)] = &[
        (&by_rules, 200, r#"{"state":"sent","id":"m1"}"#, "executed m1"),
        (&by_rules, 200, r#"{"state":"sent"}"#, "executed -"),
        (&by_rules, 200, "\u{feff}{\"state\":\"sent\"}", "executed -"),
        (&by_rules, 200, r#"{"state":"queued"}"#, "running"),
        (&by_rules, 202, r#"{"state":"sending"}"#, "running"),
        (&by_rules, 404, "", "absent"),
        (&by_rules, 404, r#"{"error":"no such key"}"#, "absent"),
        (
            &by_rules,
            200,
            r#"{"state":"compliance_hold"}"#,
            r#"unmapped http 200: claimed by no rule: {"state":"compliance_hold"}"#,
        ),
        (
            &by_rules,
            200,
            r#"{"stat":"sent"}"#,
            "unmapped http 200: claimed by no rule (completed_when: No such key: state): {\"stat",
        ),
        (&by_rules, 200, "", "unmapped http 200: claimed by no rule (completed_when: "),
        (&by_rules, 200, "null", "unmapped http 200: claimed by no rule"),
        (&by_rules, 200, "sent", "unmapped http 200: claimed by no rule"),
        (&by_rules, 200, "[]", "unmapped http 200: claimed by no rule"),
        (&by_rules, 403, "{}", "unmapped http 403: claimed by no rule"),
        (
            &by_rules,
            404,
            r#"{"state":"queued"}"#,
            "unmapped http 404: claimed by not_executed_when and by running_when",
        ),
        // A name that stands twice has no one value.
        (
            &by_rules,
            200,
            r#"{"state":"sent","state":"failed"}"#,
            "unmapped http 200: claimed by no",
        ),
        (&twice, 200, r#"{"a":true,"b":false,"c":false}"#, "executed -"),
        (&twice, 200, r#"{"a":true}"#, "executed -"),
        (&twice, 200, r#"{"b":true}"#, "absent"),
        (&twice, 200, r#"{"c":true}"#, "running"),
        (&twice, 200, r#"{"a":true,"c":true}"#, "unmapped http 200: claimed by completed_when and"),
        (
            &twice,
            200,
            r#"{"a":true,"b":"yes"}"#,
            "unmapped http 200: not_executed_when is a string, neither true nor false",
        ),
        (&twice, 200, r#"{"a":null}"#, "unmapped http 200: completed_when is a null_type, neither"),
        (&twice, 200, r#"{"c":1}"#, "unmapped http 200: running_when is a int, neither"),
    ];
    for (face, status, body, expected) in table {
        says(&judged(face, *status, body), expected);
    }
    let headers =
        by_key("completed_when = \"headers['x-state'] == 'a, b' && !('X-State' in headers)\"");
    says(&judged(&headers, 200, "{}"), "executed -");
    let text = by_key("completed_when = \"body.contains('sent')\"\nresult = \"body\"");
    says(&judged_as(&text, 200, "text/plain", "état: sent\u{0}".as_bytes(), false), "executed -");
    says(&judged_as(&text, 200, "text/plain", b"\xff sent", false), "executed -");
}

#[test]
fn a_note_shows_the_beginning_on_one_line() {
    let face = by_key(RULES);
    let body = format!("{{\"state\":\r\n\t\"{}\u{1b}[31m\"}}", "ö".repeat(100));
    let Answer::Unmapped { note } = judged(&face, 200, &body) else { panic!("it is unmapped") };
    assert!(!note.chars().any(char::is_control), "{note:?}");
    let (_, shown) = note.split_once("): ").unwrap_or_else(|| panic!("{note}"));
    assert_eq!(shown.chars().count(), 80, "{shown}");
    assert!(shown.starts_with("{\"state\":\"öö") && shown.ends_with('…'), "{shown}");
}

#[test]
fn an_object_is_ours_by_its_key() {
    let one = face(
        "?order={business.order}",
        "completed_when = \"body.state == 'sent'\"\nnot_executed_when = \"status == 404\"\n\
         running_when = \"body.state == 'queued'\"\nkey_at = \"body.key\"",
    );
    let list = face(
        "?order={business.order}",
        "completed_when = \"size(body.data) > 0 && body.data.all(o, o.state == 'sent')\"\n\
         not_executed_when = \"size(body.data) == 0\"\n\
         running_when = \"body.data.exists(o, o.state == 'queued')\"\n\
         key_at = \"body.data.map(o, o.key)\"\nref_at = \"body.data.map(o, o.id)\"",
    );
    let other = "unmapped http 200: an object of another key";
    let no_key = "unmapped http 200: no key in the answer";
    let table: &[(&HttpFace, u16, &str, &str)] = &[
        (&one, 200, r#"{"state":"sent","key":"k1","id":7}"#, "executed 7"),
        (&one, 200, r#"{"state":"sent","key":"k2","id":7}"#, other),
        (&one, 200, r#"{"state":"sent","key":"K1"}"#, other),
        (&one, 200, r#"{"state":"sent","key":" k1"}"#, other),
        (&one, 200, r#"{"state":"sent","key":1}"#, other),
        (&one, 200, r#"{"state":"sent","key":{"k1":"k1"}}"#, other),
        (&one, 200, r#"{"state":"sent"}"#, no_key),
        (&one, 200, r#"{"state":"sent","key":null}"#, no_key),
        (&one, 200, r#"{"state":"sent","key":[]}"#, no_key),
        (&one, 200, r#"{"state":"queued","key":"k1"}"#, "running"),
        (&one, 200, r#"{"state":"queued","key":"k2"}"#, other),
        (&one, 200, r#"{"state":"queued"}"#, no_key),
        (&one, 404, "", "absent"),
        (&one, 404, r#"{"key":null}"#, "absent"),
        (&one, 404, r#"{"key":"k1"}"#, "absent"),
        (&one, 404, r#"{"key":"k2"}"#, "unmapped http 404: an object of another key"),
        // Lists.
        (&list, 200, r#"{"data":[]}"#, "absent"),
        (&list, 200, r#"{"data":[{"state":"sent","key":"k1","id":"a"}]}"#, "executed a"),
        (
            &list,
            200,
            r#"{"data":[{"state":"sent","key":"k2","id":"a"},{"state":"sent","key":"k1","id":"b"}]}"#,
            "executed b",
        ),
        (
            &list,
            200,
            r#"{"data":[{"state":"sent","key":"k1","id":"a"},{"state":"sent","key":"k1","id":"b"}]}"#,
            "several a b",
        ),
        // The same one, listed twice.
        (
            &list,
            200,
            r#"{"data":[{"state":"sent","key":"k1","id":"a"},{"state":"sent","key":"k1","id":"a"}]}"#,
            "executed a",
        ),
        (&list, 200, r#"{"data":[{"state":"sent","key":"k2","id":"a"}]}"#, other),
        (&list, 200, r#"{"data":[{"state":"sent","id":"a"}]}"#, no_key),
        (&list, 200, r#"{"data":[{"state":"sent","key":null,"id":"a"}]}"#, other),
        (
            &list,
            200,
            r#"{"data":[{"state":"queued","key":"k1"},{"state":"sent","key":"k1"}]}"#,
            "running",
        ),
        (&list, 200, r#"{"data":[{"state":"queued","key":"k2"}]}"#, other),
    ];
    for (face, status, body, expected) in table {
        says(&judged(face, *status, body), expected);
    }
}

#[test]
fn references_are_found_where_they_are_said_or_usual() {
    let when = "completed_when = \"true\"";
    let usual = by_key(when);
    let said = by_key(&format!("{when}\nref_at = \"body.refs\""));
    let keyed = by_key(&format!("{when}\nkey_at = \"body.map(o, o.key)\""));
    let both = by_key(&format!("{when}\nkey_at = \"body.keys\"\nref_at = \"body.refs\""));
    let none = "unmapped http 200: no reference in the answer";
    let pair = "unmapped http 200: as many references as keys are needed";
    let long = format!(r#"{{"id":"{}","refs":"{}"}}"#, "x".repeat(1025), "x".repeat(1025));
    let table: &[(&HttpFace, &str, &str)] = &[
        // The usual place.
        (&usual, r#"{"id":"a"}"#, "executed a"),
        (&usual, r#"{"id":9007199254740993}"#, "executed 9007199254740993"),
        (&usual, r#"{"id":123456789012345678901}"#, "executed 123456789012345678901"),
        (&usual, r#"{"id":1.5}"#, "executed -"),
        (&usual, r#"{"id":""}"#, "executed -"),
        (&usual, r#"{"id":null}"#, "executed -"),
        (&usual, r#"{"id":"a\nb"}"#, "executed -"),
        (&usual, &long, "executed -"),
        (&usual, r#"{"data":[{"id":"a"},{"id":"b"}]}"#, "executed -"),
        (&usual, "\"a\"", "executed -"),
        (&usual, r#"[{"id":"a"}]"#, "executed a"),
        (&usual, r#"[{"id":"a"},{"id":"b"}]"#, "several a b"),
        (&usual, r#"[{"id":"a"},{"id":"a"}]"#, "executed a"),
        (&usual, r#"[{"id":"a"},{}]"#, "several a"),
        (&usual, "[1,2]", "several "),
        (&usual, "[]", "unmapped executed, without an object that shows it"),
        (&keyed, r#"[{"key":"k1","id":1},{"key":"k2","id":2}]"#, "executed 1"),
        (&keyed, r#"[{"key":"k1","id":1},{"key":"k1","id":2}]"#, "several 1 2"),
        (&keyed, r#"[{"key":"k1"},{"key":"k1"}]"#, "several "),
        // Where the policy says.
        (&said, r#"{"refs":"a","id":"b"}"#, "executed a"),
        (&said, r#"{"refs":17}"#, "executed 17"),
        (&said, r#"{"refs":["a"]}"#, "executed a"),
        (&said, r#"{"refs":["a","b"]}"#, "several a b"),
        (&said, r#"{"refs":[]}"#, none),
        (&said, r#"{"refs":["a",null]}"#, none),
        (&said, r#"{"refs":null}"#, none),
        (&said, r#"{"refs":true}"#, none),
        (&said, r#"{"refs":""}"#, none),
        (&said, &long, none),
        (&said, r#"{"id":"a"}"#, "unmapped http 200: ref_at: No such key: refs"),
        // Beside keys.
        (&both, r#"{"keys":"k1","refs":"a"}"#, "executed a"),
        (&both, r#"{"keys":"k1","refs":["a","b"]}"#, "several a b"),
        (&both, r#"{"keys":["k1"],"refs":"a"}"#, "executed a"),
        (&both, r#"{"keys":["k2","k1"],"refs":[null,"b"]}"#, "executed b"),
        (&both, r#"{"keys":["k2","k1"],"refs":["a",null]}"#, none),
        (&both, r#"{"keys":["k2","k1"],"refs":["b"]}"#, pair),
        (&both, r#"{"keys":["k2","k1"],"refs":"b"}"#, pair),
        (&both, r#"{"keys":["k1","k1"],"refs":["a","b"]}"#, "several a b"),
    ];
    for (face, body, expected) in table {
        says(&judged(face, 200, body), expected);
    }
}

#[test]
fn a_replay_gets_what_the_downstream_said() {
    let with = |result: &str| by_key(&format!("completed_when = \"true\"\nresult = \"{result}\""));
    let body = " {\"b\":1, \"a\":1.0,\"big\":9007199254740993,\"n\":null}\n";
    for whole in [by_key("completed_when = \"true\""), with("body"), with(" body ")] {
        let answer =
            judged_as(&whole, 200, "application/json; charset=utf-8", body.as_bytes(), false);
        assert_eq!(result(&answer), (body.as_bytes(), "application/json; charset=utf-8"));
        let answer = judged_as(&whole, 200, "", b"\xff\x00", false);
        assert_eq!(result(&answer), (&b"\xff\x00"[..], ""));
        let odd = "x".repeat(256);
        assert_eq!(result(&judged_as(&whole, 200, &odd, b"1", false)), (&b"1"[..], ""));
        says(&judged(&whole, 200, ""), "unmapped http 200: no body to replay");
    }
    let table = [
        ("body.big", "9007199254740993"),
        ("body.a", "1.0"),
        ("body.n", "null"),
        ("{'id': body.b, 'a': [body.a]}", r#"{"a":[1.0],"id":1}"#),
        ("'done'", "\"done\""),
        ("body == body", "true"),
        ("[body][0]", r#"{"a":1.0,"b":1,"big":9007199254740993,"n":null}"#),
    ];
    for (written, expected) in table {
        let answer = judged(&with(written), 200, body);
        assert_eq!(result(&answer), (expected.as_bytes(), JSON), "{written}");
    }
    says(&judged(&with("'done'"), 204, ""), "executed -");
    says(&judged(&with("body.x"), 200, body), "unmapped http 200: result: No such key: x");
    says(&judged(&with("type(body)"), 200, body), "unmapped http 200: result: JSON has no such");
    says(&judged(&with("{1: 2}"), 200, body), "unmapped http 200: result: JSON has no such");
    says(&judged(&with("1.0 / 0.0"), 200, body), "unmapped http 200: result: JSON has no such");

    let long = format!("\"{}\"", "x".repeat(2000));
    let Answer::Executed { result, .. } = judged(&by_key("completed_when = \"true\""), 200, &long)
    else {
        panic!("it happened");
    };
    assert!(result.truncated && result.size == 2002);
    assert_eq!(result.bytes.map(|bytes| bytes.len()), Some(1024));
}

/// An answer of 64 KiB that is as deep, as wide or as odd as it can be, on the 2 MiB of a thread.
#[test]
fn no_answer_overflows_the_stack() {
    let rules = "\
completed_when = \"body == body && size(body) > 1\"
not_executed_when = \"body.all(o, o == o && [o, o].all(p, p == o))\"
running_when = \"body.exists(o, o.a == 1)\"
result = \"[body, body].map(o, o)\"
key_at = \"body.map(o, o)\"
ref_at = \"body.map(o, o)\"";
    let face = by_key(rules);
    let max = crate::policy::status::ANSWER_BYTES_MAX;
    let bodies = [
        "[".repeat(max),
        "[".repeat(max / 2) + &"]".repeat(max / 2),
        "{\"a\":".repeat(max / 5),
        "[".repeat(128) + &"]".repeat(128),
        format!("{}1{}", "{\"a\":".repeat(128), "}".repeat(128)),
        format!("[{}0]", "0,".repeat(max / 2 - 2)),
        format!("[{}{{}}]", "{},".repeat(max / 3 - 2)),
        format!(
            "[{}{}{}]",
            "[".repeat(127),
            "1,".repeat(30_000),
            "1".to_owned() + &"]".repeat(127)
        ),
        format!("\"{}\"", "\\\"".repeat(max / 2 - 1)),
        format!("1{}", "0".repeat(max - 1)),
        format!("1e{}", "9".repeat(max - 2)),
        "\0".repeat(max),
    ];
    for body in bodies {
        assert!(body.len() <= max);
        judged(&face, 200, &body);
    }
}
