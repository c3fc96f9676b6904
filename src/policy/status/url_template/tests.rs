use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn question(business: &[(&str, &str)]) -> Question {
    let business = business.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Question {
        downstream_key: "d0".to_owned(),
        downstream_ref: None,
        key: "k0".to_owned(),
        business: business.collect(),
        tool: "mail".to_owned(),
        namespace: "default".to_owned(),
    }
}

fn filled(template: &str, value: &str) -> Result<String, MissingValue> {
    let template = UrlTemplate::parse(template).unwrap_or_else(|why| panic!("{template}: {why}"));
    template.fill(&question(&[("x", value), ("y", value)]))
}

#[test]
fn values_are_filled_in_where_the_placeholders_stand() {
    let template = "https://Mail.internal/v1/{key}/{downstream_key}.json?order={business.x}&a=b";
    let url = filled(template, "8812").expect("everything is there");
    assert_eq!(url, "https://mail.internal/v1/k0/d0.json?order=8812&a=b");

    let template =
        UrlTemplate::parse("http://mail:8080?ref={downstream_ref}").expect("it is right");
    let absent = MissingValue::Absent { placeholder: "downstream_ref".to_owned() };
    assert_eq!(template.fill(&question(&[])), Err(absent));
    let known = Question { downstream_ref: Some("re/1 é".to_owned()), ..question(&[]) };
    assert_eq!(template.fill(&known).as_deref(), Ok("http://mail:8080/?ref=re%2F1%20%C3%A9"));
    assert_eq!(template.origin().to_string(), "http://mail:8080");
    assert_eq!(template.to_string(), "http://mail:8080?ref={downstream_ref}");
    assert!(!template.asks_by_downstream_key());

    let template = UrlTemplate::parse("http://m/{business.order}/{downstream_key}/{business.b c}");
    assert!(template.is_err_and(|why| why.contains("percent-encoded")));
    let template = UrlTemplate::parse("http://m/{business.order}/{downstream_key}/{business.b.c}");
    let template = template.expect("it is right");
    assert_eq!(template.business_names().collect::<Vec<_>>(), ["order", "b.c"]);
    assert!(template.asks_by_downstream_key());
    assert_eq!(template.origin().to_string(), "http://m:80");
}

#[test]
fn a_value_changes_neither_path_nor_query() {
    let path = "http://m/a/{business.x}/b";
    let query = "http://m/a?x={business.x}&y=1";
    let unfit = || Err(MissingValue::Unfit { placeholder: "business.x".to_owned() });
    let absent = || Err(MissingValue::Absent { placeholder: "business.x".to_owned() });
    type Filled<'a> = Result<&'a str, MissingValue>;
    let table: &[(&str, Filled<'_>, Filled<'_>)] = &[
        ("o-17", Ok("o-17"), Ok("o-17")),
        ("a b", Ok("a%20b"), Ok("a%20b")),
        ("a+b&c=d#e", Ok("a%2Bb%26c%3Dd%23e"), Ok("a%2Bb%26c%3Dd%23e")),
        ("INV/2024/17", Ok("INV%2F2024%2F17"), Ok("INV%2F2024%2F17")),
        ("a?b", Ok("a%3Fb"), Ok("a%3Fb")),
        ("a\r\nHost: b", Ok("a%0D%0AHost%3A%20b"), Ok("a%0D%0AHost%3A%20b")),
        ("%2e%2e", unfit(), Ok("%252e%252e")),
        ("{downstream_key}", Ok("%7Bdownstream_key%7D"), Ok("%7Bdownstream_key%7D")),
        ("@evil.example", Ok("%40evil.example"), Ok("%40evil.example")),
        ("...", Ok("..."), Ok("...")),
        (".", unfit(), Ok(".")),
        ("..", unfit(), Ok("..")),
        ("a/../b", unfit(), Ok("a%2F..%2Fb")),
        ("..\\b", unfit(), Ok("..%5Cb")),
        ("/./", unfit(), Ok("%2F.%2F")),
        ("", absent(), absent()),
    ];
    for (value, in_path, in_query) in table {
        let expected = in_path.clone().map(|text| format!("http://m/a/{text}/b"));
        assert_eq!(filled(path, value), expected, "{value:?}");
        let expected = in_query.clone().map(|text| format!("http://m/a?x={text}&y=1"));
        assert_eq!(filled(query, value), expected, "{value:?}");
    }
    // Two values, or a value and a text, that only together are a step.
    assert!(filled("http://m/{business.x}{business.y}/b", ".").is_err());
    assert!(filled("http://m/.{business.x}/b", ".").is_err());
    assert!(filled("http://m/%2E{business.x}/b", ".").is_err());
    assert!(filled("http://m/{business.x}.json", "..").is_err());
    assert_eq!(filled("http://m/v{business.x}", ".1").as_deref(), Ok("http://m/v.1"));
}

#[test]
fn what_is_no_question_says_why() {
    let table = [
        ("file:///etc/passwd", "must begin with http:// or https://"),
        ("ftp://m/{key}", "must begin with http:// or https://"),
        ("HTTP://m/{key}", "must begin with http:// or https://"),
        (" http://m/{key}", "must begin with http:// or https://"),
        ("m/{key}", "must begin with http:// or https://"),
        ("{key}", "must begin with http:// or https://"),
        ("http:m/{key}", "must begin with http:// or https://"),
        ("http:///{key}", "no URL"),
        ("http://?{key}", "no URL"),
        ("http://m\\@n/{key}", "must not have '\\\\' in it"),
        ("http://m/a b/{key}", "must not have ' ' in it"),
        ("http://m/\t{key}", "must not have '\\t' in it"),
        ("http://m/é/{key}", "must not have 'é' in it"),
        ("http://mäil/{key}", "must not have 'ä' in it"),
        ("http://${HOST}/{key}", "takes no environment variables"),
        ("http://m/${TOKEN}/{key}", "takes no environment variables"),
        ("http://{business.host}/{key}", "in the path or the query"),
        ("http://m:{key}/", "in the path or the query"),
        ("http://u:p@m/{key}", "must not name a user or a password"),
        ("http://m@n/{key}", "must not name a user or a password"),
        ("http://m/{key}#x", "must not have a fragment"),
        ("http://m#{key}", "must not have a fragment"),
        ("http://m:99999/{key}", "is no URL: invalid port number"),
        ("http://m:0/{key}", "has no port"),
        ("http://[::1/{key}", "is no URL"),
        ("http://a..b%/{key}", "is no URL"),
        ("http://m/%zz/{key}", "has a % that encodes nothing"),
        ("http://m/{key}%2", "has a % that encodes nothing"),
        ("http://m/{key", "has a brace without its other one"),
        ("http://m/key}", "has a brace without its other one"),
        ("http://m/{{key}}", "unknown placeholder {{key}"),
        ("http://m/{}", "unknown placeholder {}"),
        ("http://m/{business.}", "unknown placeholder {business.}"),
        ("http://m/{downstream-key}", "did you mean \"downstream_key\"?"),
        ("http://m/{args.order}", "known: {downstream_key}, {downstream_ref}, {key}"),
        ("http://m/v1/status", "asks the same of every call: name one of {downstream_key}"),
        ("http://m", "asks the same of every call"),
        ("http://m/a/../{key}", "must not have a segment . or .."),
        ("http://m/a/%2E%2e/{key}", "must not have a segment . or .."),
        ("http://m/./{key}", "must not have a segment . or .."),
        ("http://169.254.169.254/{key}", "169.254.169.254: it is the metadata service of a cloud"),
        ("http://2852039166/{key}", "it is the metadata service of a cloud"),
        ("http://0xa9.0xfe.0xa9.0xfe/{key}", "it is the metadata service of a cloud"),
        ("http://[::ffff:a9fe:a9fe]:80/{key}", "it is the metadata service of a cloud"),
        ("http://Metadata.Google.internal/{key}", "it is the metadata service of a cloud"),
        ("http://metadata.google.internal./{key}", "it is the metadata service of a cloud"),
        ("http://169.254.0.1/{key}", "it is a link-local address"),
        ("http://[fe80::1]/{key}", "it is a link-local address"),
        ("http://0/{key}", "it is an unspecified address"),
        ("http://[::]/{key}", "it is an unspecified address"),
        ("http://239.1.1.1/{key}", "it is a multicast address"),
    ];
    for (text, part) in table {
        let why = UrlTemplate::parse(text).expect_err(text);
        assert!(why.contains(part), "{text}: {why}");
    }
}

proptest! {
    /// Whoever reads the URL finds the policy's own segments where they were, and the value whole
    /// in its place.
    #[test]
    fn no_value_leaves_its_segment(
        value in prop_oneof![any::<String>(), "[./\\\\%?#&=;@:a2eE \r\n\t]{0,8}"],
    ) {
        for template in [
            "http://m:81/a/{business.x}/b?c={business.y}&d=e",
            "http://m:81/a/p{business.x}q/b?c={business.y}&d=e",
        ] {
            let Ok(url) = filled(template, &value) else { continue };
            let url = Url::parse(&url).expect("what is filled in is a URL");
            prop_assert_eq!((url.host_str(), url.port()), (Some("m"), Some(81)));
            prop_assert!(url.fragment().is_none() && url.username().is_empty());
            let segments: Vec<&str> = url.path_segments().expect("it has a path").collect();
            prop_assert_eq!(segments.len(), 3, "{}", url);
            prop_assert_eq!((segments[0], segments[2]), ("a", "b"));
            let decoded = percent_decoded(segments[1]);
            let own = decoded.strip_prefix('p').and_then(|rest| rest.strip_suffix('q'));
            let own = if template.contains("p{") { own } else { Some(decoded.as_str()) };
            prop_assert_eq!(own, Some(value.as_str()));
            let query: BTreeMap<_, _> = url.query_pairs().into_owned().collect();
            prop_assert_eq!(query.len(), 2);
            prop_assert_eq!(&query["c"], &value);
            prop_assert_eq!(&query["d"], "e");
        }
    }
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        if *first == b'%' {
            let hex = std::str::from_utf8(&more[..2]).expect("it is encoded in ASCII");
            bytes.push(u8::from_str_radix(hex, 16).expect("it is encoded in hexadecimal"));
            rest = &more[2..];
        } else {
            bytes.push(*first);
            rest = more;
        }
    }
    String::from_utf8(bytes).expect("it was UTF-8")
}
