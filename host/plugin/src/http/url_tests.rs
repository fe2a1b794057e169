//! Every trick that makes two readers of one URL see two places, and that what is left has one form.

use proptest::prelude::*;

use super::*;

fn origin(url: &str) -> String {
    parse(url).unwrap().0.to_string()
}

#[test]
fn one_place_has_one_form() {
    for (url, form) in [
        ("https://hooks.example.com:443/in/", "https://hooks.example.com:443"),
        ("HTTPS://Hooks.Example.COM/in/", "https://hooks.example.com:443"),
        ("http://a_b.example", "http://a_b.example:80"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://[0:0::1]:8080/", "http://[::1]:8080"),
        ("http://[::ffff:127.0.0.1]/", "http://[::ffff:127.0.0.1]:80"),
        ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example:443"),
    ] {
        assert_eq!(origin(url), form, "{url}");
    }
    let (plain, _) = parse("https://example.com/").unwrap();
    assert_eq!(plain.authority(), "example.com");
    assert_eq!(parse("https://example.com:80/").unwrap().0.authority(), "example.com:80");
    assert_eq!(parse("http://[::1]:81/").unwrap().0.authority(), "[::1]:81");
}

#[test]
fn what_is_read_in_two_ways_is_refused() {
    for (url, unfit) in [
        ("ftp://example.com/", Unfit::Scheme),
        ("example.com/in", Unfit::Scheme),
        ("//example.com/in", Unfit::Scheme),
        ("https://user@example.com/", Unfit::UserInfo),
        ("https://good.example:443@evil.example/", Unfit::UserInfo),
        ("https://@example.com/", Unfit::UserInfo),
        ("https:///in", Unfit::Host),
        ("https://exa mple.com/", Unfit::Host),
        ("https://exämple.com/", Unfit::Host),
        ("https://example..com/", Unfit::Host),
        ("https://.example.com/", Unfit::Host),
        ("https://-a.example/", Unfit::Host),
        ("https://a%2eexample/", Unfit::Host),
        ("https://example.com\\@evil.example/", Unfit::UserInfo),
        ("https://example.com\\evil/", Unfit::Host),
        ("https://[::1/", Unfit::Host),
        ("https://[fe80::1%25lo]/", Unfit::Host),
        ("https://[127.0.0.1]/", Unfit::Host),
        ("https://::1/", Unfit::Host),
        ("https://example.com./", Unfit::TrailingDot),
        ("https://127.0.0.1./", Unfit::TrailingDot),
        ("https://2130706433/", Unfit::NumericHost),
        ("https://127.1/", Unfit::NumericHost),
        ("https://0177.0.0.1/", Unfit::NumericHost),
        ("https://0x7f.0.0.1/", Unfit::NumericHost),
        ("https://0x7f000001/", Unfit::NumericHost),
        ("https://127.0.0.0x1/", Unfit::NumericHost),
        ("https://1.2.3.4.5/", Unfit::NumericHost),
        ("https://256.0.0.1/", Unfit::NumericHost),
        ("https://example.com:/", Unfit::Port),
        ("https://example.com:0/", Unfit::Port),
        ("https://example.com:65536/", Unfit::Port),
        ("https://example.com:+80/", Unfit::Port),
        ("https://example.com:80:81/", Unfit::Port),
        ("https://[::1]80/", Unfit::Port),
        ("https://example.com/in?x=1", Unfit::Query),
        ("https://example.com#in", Unfit::Query),
    ] {
        assert_eq!(parse(url), Err(unfit), "{url}");
    }
}

#[test]
fn nothing_climbs_out_of_a_prefix() {
    for path in [
        "/",
        "/in/",
        "/in/a",
        "/in/a.b",
        "/in/...",
        "/in/a%20b",
        "/in/100%25",
        "/in/%C3%A4",
        "/in/a;v=1",
        "/in/.well-known",
    ] {
        assert_eq!(check_target(path, Some("q=../%2e%2e//")), Ok(()), "{path}");
    }
    for path in [
        "",
        "in/",
        "*",
        "/in/../admin",
        "/in/..",
        "/in/./a",
        "/in/.",
        "/..",
        "//in/",
        "/in//a",
        "/in/%2e%2e/admin",
        "/in/.%2E/admin",
        "/in/%2e",
        "/in/..%2fadmin",
        "/in%2f..%2fadmin",
        "/in/%5c..%5cadmin",
        "/in\\..\\admin",
        "/in/..\\admin",
        "/in/%252e%252e/admin",
        "/in/%25252e%25252e/admin",
        "/in/%2525252525252e",
        "/in/..;/admin",
        "/in/..;x=1/admin",
        "/in/;/a",
        "/in/%2e%2e;/admin",
        "/in/a%00",
        "/in/a%0d%0aHost:evil",
        "/in/a b",
        "/in/ä",
        "/in/%c0%ae%c0%ae/admin",
        "/in/%zz",
        "/in/%2",
        "/in/%",
        "/in/a#b",
        "/in/%252fadmin",
    ] {
        assert_eq!(check_target(path, None), Err(Unfit::Path), "{path}");
    }
    assert_eq!(check_target("/in/", Some("a#b")), Err(Unfit::Path));
    assert_eq!(check_target("/in/", Some("a b")), Err(Unfit::Path));
    assert_eq!(check_target(&format!("/{}", "x".repeat(MAX_TARGET_BYTES)), None), Err(Unfit::Long));
    assert_eq!(check_target("/", Some(&"x".repeat(MAX_TARGET_BYTES))), Err(Unfit::Long));
}

#[test]
fn a_prefix_ends_at_a_segment() {
    let covers = |prefix: &str, path: &str| parse(&format!("https://a{prefix}")).unwrap().1.covers(path);
    for (prefix, path, covered) in [
        ("", "/", true),
        ("/", "/anything/at/all", true),
        ("/in/", "/in/", true),
        ("/in/", "/in/a/b", true),
        ("/in/", "/in", false),
        ("/in/", "/", false),
        ("/in/", "/IN/a", false),
        ("/in/", "/%69n/a", false),
        ("/in", "/in", true),
        ("/in", "/in/a", true),
        ("/in", "/inside", false),
    ] {
        assert_eq!(covers(prefix, path), covered, "{prefix} {path}");
    }
}

/// Texts that are near to URLs: pieces that mean something, in any order.
fn near_urls() -> impl Strategy<Value = String> {
    let pieces = [
        "http",
        "https",
        "://",
        "/",
        "//",
        ":",
        "@",
        "[",
        "]",
        ".",
        "..",
        "%2e",
        "%2f",
        "%",
        "%25",
        ";",
        "?",
        "#",
        "\\",
        "a",
        "A",
        "example",
        "::1",
        "127.0.0.1",
        "1",
        "0x1",
        "443",
        "-",
        "_",
        "é",
        " ",
        "\u{0}",
    ];
    let piece = prop_oneof![4 => proptest::sample::select(pieces.to_vec()).prop_map(str::to_owned), 1 => ".{0,3}"];
    (prop_oneof![Just(""), Just("https://"), Just("http://example.com/in/")], proptest::collection::vec(piece, 0..10))
        .prop_map(|(start, pieces)| start.to_owned() + &pieces.concat())
}

/// What any server may make of a path: decoded to the end, dots resolved.
fn resolved(path: &str) -> String {
    let mut bytes = path.as_bytes().to_vec();
    loop {
        let next = decode(&bytes, false).unwrap();
        if next == bytes {
            break;
        }
        bytes = next;
    }
    let mut place: Vec<String> = Vec::new();
    for segment in String::from_utf8_lossy(&bytes).replace('\\', "/").split('/').skip(1) {
        match segment.split(';').next().unwrap() {
            ".." => drop(place.pop()),
            "." => {}
            name => place.push(name.to_owned()),
        }
    }
    format!("/{}", place.join("/"))
}

proptest! {
    /// Nothing panics, and what is taken prints as something that reads back as itself.
    #[test]
    fn what_is_taken_reads_back_as_itself(url in near_urls()) {
        if let Ok((origin, prefix)) = parse(&url) {
            let again = format!("{origin}{}", prefix.as_str());
            prop_assert_eq!(parse(&again), Ok((origin, prefix)), "{}", again);
        }
    }

    #[test]
    fn what_is_taken_stays_below_its_prefix_for_every_reader(tail in near_urls()) {
        let path = format!("/in/{tail}");
        if check_target(&path, None).is_ok() {
            prop_assert!(resolved(&path).starts_with("/in"), "{} is {}", path, resolved(&path));
        }
    }
}
