use proptest::prelude::*;

use super::*;
use crate::policy::status::value;

/// What an expression makes of a body: its value as JSON, or why it has none.
fn evaluated(source: &str, body: &str) -> Result<String, String> {
    let expression = Expression::compile(source).unwrap_or_else(|why| panic!("{source}: {why:?}"));
    let body = value::read(body).expect("the body is JSON");
    let headers = value::read(r#"{"x-state":"sent"}"#).expect("it is JSON");
    let status = value::read("200").expect("it is JSON");
    let context = context([("status", status), ("headers", headers), ("body", body)]);
    let value = expression.evaluate(&context)?;
    Ok(value::write(&*value).unwrap_or_else(|| value.get_type().name().to_owned()))
}

fn problem(source: &str) -> String {
    let problems = Expression::compile(source).expect_err(source);
    assert!(!problems.is_empty(), "{source}");
    problems.join("\n")
}

#[test]
fn rules_say_what_their_language_says() {
    let body = r#"{"state":"sent","n":2,"f":1.5,"none":null,"list":[{"k":"a"},{"k":"b"},{}]}"#;
    let table: &[(&str, Result<&str, &str>)] = &[
        ("status == 200 && body.state == 'sent'", Ok("true")),
        ("body.state in ['queued', 'sending']", Ok("false")),
        ("headers['x-state'] == \"sent\"", Ok("true")),
        ("body.n == 2 && body.n == 2.0 && body.n < 2.5", Ok("true")),
        ("body.none == null && has(body.none) && !has(body.other)", Ok("true")),
        ("body.state == 2", Ok("false")),
        ("body.list.exists(o, o.k == 'b')", Ok("true")),
        ("body.list.all(o, has(o.k))", Ok("false")),
        ("body.list.filter(o, has(o.k)).map(o, o.k)", Ok("[\"a\",\"b\"]")),
        ("body.list.exists_one(o, has(o.k) && o.k == 'a')", Ok("true")),
        ("size(body.list) + body.list.size()", Ok("6")),
        ("body.state.startsWith('se') && body.state.endsWith('nt')", Ok("true")),
        ("body.state.contains('en') && body.state.matches('^s.*t$')", Ok("true")),
        ("body.?state.orValue('') == 'sent' && !body.?other.hasValue()", Ok("true")),
        ("optional.of(body.n).value() == 2 && type(body.n) == int", Ok("true")),
        ("{'a': [body.n, string(body.f)], 'b': body.none}", Ok(r#"{"a":[2,"1.5"],"b":null}"#)),
        ("body.n > 1 ? 'many' : 'one'", Ok("\"many\"")),
        ("type(body)", Ok("type")),
        // What an error leaves undecided, the other side may decide.
        ("body.other == 1 || body.n == 2", Ok("true")),
        ("body.other == 1", Err("No such key: other")),
        ("body.state.x == 1", Err("overload")),
        ("body.state > 1", Err("overload")),
        ("body.n + body.f", Err("")),
        ("body.list[7]", Err("Index out of bounds")),
        ("body.n / 0", Err("Division by zero")),
        ("body.state.matches('(')", Err("matches")),
    ];
    for (source, expected) in table {
        match (evaluated(source, body), expected) {
            (Ok(value), Ok(expected)) => assert_eq!(value, *expected, "{source}"),
            (Err(error), Err(part)) => assert!(error.contains(part), "{source}: {error}"),
            (other, _) => panic!("{source}: {other:?}"),
        }
    }
}

#[test]
fn large_numbers_are_compared_exactly() {
    let body = r#"{"a":9007199254740993,"b":18446744073709551615,"c":18446744073709551616,
                   "d":18446744073709551617,"e":1.8446744073709551616e19}"#;
    let table: &[(&str, Result<&str, &str>)] = &[
        ("body.a == 9007199254740993 && body.a != 9007199254740992", Ok("true")),
        ("body.b == 18446744073709551615u", Ok("true")),
        // The language compares an int with a double as doubles.
        ("body.a == 9007199254740992.0", Ok("true")),
        ("body.c == body.d", Ok("false")),
        ("body.c == body.e", Ok("true")),
        ("body.c == 18446744073709551616.0", Ok("false")),
        ("body.c", Ok("18446744073709551616")),
        ("body.c > 1", Err("overload")),
        ("body.c + 1", Err("")),
        ("string(body.c)", Err("overload")),
    ];
    for (source, expected) in table {
        match (evaluated(source, body), expected) {
            (Ok(value), Ok(expected)) => assert_eq!(value, *expected, "{source}"),
            (Err(error), Err(part)) => assert!(error.contains(part), "{source}: {error}"),
            (other, _) => panic!("{source}: {other:?}"),
        }
    }
}

#[test]
fn what_is_no_rule_says_where() {
    let long = format!("status == 200{}", " || status == 201".repeat(80));
    let deep = format!("{}status{}", "-(".repeat(60), ")".repeat(60));
    let table = [
        ("", "must be an expression"),
        (" \n", "must be an expression"),
        ("status =", "column 8 of the expression: "),
        ("status == ", "column 11 of the expression: "),
        ("status == 200)", "column 14 of the expression: "),
        ("status = 200", "column 8 of the expression: "),
        ("'sent", "column 1 of the expression: "),
        ("status == 200 &&\n  body.state = 1", "line 2, column 14 of the expression: "),
        ("state == 'sent'", "column 1 of the expression: unknown variable state"),
        ("status == 200 && bdy.state == 1", "column 18 of the expression: unknown variable bdy"),
        ("bdy.x == 1", "did you mean \"body\"?; known: status, headers, body"),
        ("'é' == x", "column 8 of the expression: unknown variable x"),
        ("status == 200\n&& x", "line 2, column 4 of the expression: unknown variable x"),
        ("body.exists(o, o.k == p)", "unknown variable p"),
        ("body.exists(o, true) && o == 1", "column 25 of the expression: unknown variable o"),
        ("google.protobuf.Timestamp", "unknown variable google"),
        ("args.amount > 100", "unknown variable args"),
        ("now() > 1", "unknown function now"),
        ("body.state.startWith('a')", "unknown function startWith; did you mean \"startsWith\"?"),
        ("body.state.lowerAscii() == 'a'", "unknown function lowerAscii"),
        ("timestamp('x') == 1", "unknown function timestamp"),
        ("optional.some(1)", "unknown function optional.some"),
        ("size(body, 1) == 1", "size is not called like this"),
        ("body.size(1) == 1", "size is not called like this"),
        ("contains(body, 'a')", "contains is not called like this"),
        ("body.exists(o)", "exists is not called like this"),
        ("has(body)", "has"),
        ("Thing{a: 1}", "unknown type Thing"),
        ("body.all(o, body.all(p, o == p))", "a macro inside another must range over its o"),
        ("body.map(o, o.l.map(p, o.m.map(q, q)))", "a macro inside another must range over its p"),
        (
            "body.all(o, o == body)",
            "column 18 of the expression: body as a whole cannot stand in a macro",
        ),
        ("size(body.map(o, body)) > 0", "body as a whole cannot stand in a macro"),
        ("body.all(o, size(headers) > o)", "headers as a whole cannot stand in a macro"),
        (
            "body.a.exists(o, o in body.b)",
            "`in` inside a macro must look into a list that is written",
        ),
        ("body.a.exists(o, o in [body.b])", "`in` inside a macro must look into a list"),
        (&long, "must have 1024 bytes or less, not 1"),
        (&deep, "must not be nested deeper than 24"),
    ];
    for (source, part) in table {
        let problem = problem(source);
        assert!(problem.contains(part), "{source}: {problem}");
    }
    let both = problem("x == y && x == 1");
    assert_eq!(both.lines().count(), 2, "{both}");
}

#[test]
fn what_a_macro_has_in_hand_may_be_ranged_over() {
    for source in [
        "body.all(o, o.list.exists(p, p == o.id || p == body.id))",
        "body.filter(o, has(o.list)).all(o, o.list.filter(p, p.ok).all(p, p.id == 1))",
        "body.all(o, [1, 2].exists(n, n == o))",
        "body.?a.optMap(a, a.all(b, b > 1)).orValue(false)",
        "body.a.all(o, o) && body.b.all(o, o)",
        "body.a.exists(o, o in [1, 2] && o.id in o.all) && status in body.b",
        "body.exists(o, o.k == body[0].k || o.k == headers['x'] || has(body.k)) && body == []",
    ] {
        assert!(Expression::compile(source).is_ok(), "{source}: {:?}", Expression::compile(source));
    }
}

#[test]
fn every_function_that_is_let_pass_is_there() {
    for (name, global, method) in FUNCTIONS {
        let arguments = |count: usize| vec!["body"; count].join(", ");
        let mut calls: Vec<String> = Vec::new();
        calls.extend(global.map(|count| format!("{name}({})", arguments(count))));
        calls.extend(method.map(|count| format!("body.{name}({})", arguments(count))));
        assert!(!calls.is_empty(), "{name}");
        for call in calls {
            if let Err(error) = evaluated(&call, "1") {
                assert!(!error.contains("Undeclared"), "{call}: {error}");
            }
        }
    }
}

#[test]
fn no_text_overflows_the_stack_of_the_parser() {
    for piece in [
        "(", "[", "{", "[{", "(-", "!", "-", "a.", "1+", "a[", "f(", "a.f(", "x?", "x?(", "true&&",
        "{1:", "'", "\\", ")", "]", "}",
    ] {
        for length in [50, SOURCE_BYTES_MAX, 1 << 20] {
            let source: String = piece.repeat(length / piece.len());
            let _ = Expression::compile(&source);
            let _ = Expression::compile(&format!("{source}1"));
        }
    }
}

/// On half of the 2 MiB that a thread of the runtime has.
#[test]
fn the_deepest_rule_over_the_deepest_answer_fits_the_stack() {
    let evaluate = || {
        let deep = "[".repeat(128) + &"]".repeat(128);
        let sums = format!("1{}", "+1".repeat(DEPTH_MAX - 1));
        let most = DEPTH_MAX - 2;
        let lists = format!("{}body{} == body", "[".repeat(most), "]".repeat(most));
        let choices = format!("{}1{}", "true?(".repeat(DEPTH_MAX - 1), "):2".repeat(DEPTH_MAX - 1));
        for source in
            [&*sums, &lists, &choices, "body == body", "[body].map(o, o)", "body.all(o, o == o)"]
        {
            assert!(evaluated(source, &deep).is_ok(), "{source}");
        }
        for source in [format!("{sums}+1"), format!("[{lists}]"), format!("[{choices}]")] {
            assert!(Expression::compile(&source).is_err(), "{source}");
        }
    };
    let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(evaluate);
    thread.expect("there is a thread").join().expect("everything holds");
}

proptest! {
    #[test]
    fn no_text_makes_the_check_panic(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "body", ".state", "status", "headers", "[0]", " == ", " && ", " in ", "!", "(", ")", "[", "]",
            "{", "}", ",", "?", ":", "'", "\"", "a", ".map(o, ", ".exists(o, ", "has(", "o.x", "1", "2u", "1.5",
            "-", "+", "\\", "\n", "é", "r'", "b\"", "'''", ".?", "[?", "optional.of(", "``", "//", "0x", "null", "\0",
        ]), 0..24),
        body in prop::sample::select(vec!["null", "{\"state\":[1,\"a\",{\"x\":2}]}", "[[1],2]", "\"a\""]),
    ) {
        let source = pieces.concat();
        if let Ok(expression) = Expression::compile(&source) {
            let context = context([
                ("status", value::read("200").expect("JSON")),
                ("headers", value::read("{}").expect("JSON")),
                ("body", value::read(body).expect("JSON")),
            ]);
            let value = expression.evaluate(&context);
            if let Err(error) = &value {
                prop_assert!(!error.contains("Undeclared"), "{}: {}", source, error);
            }
        }
    }
}
