//! Which hosts no status endpoint may have.
//!
//! A probe carries the ledger's credentials for the downstream and its answer ends up where people
//! read it, so a policy must not point it at what answers every process of a machine without asking
//! who it is: the metadata service of a cloud, above all. Loopback and private addresses are where
//! internal services live; they are allowed.
//!
//! A URL is checked when the policy is loaded. A name says nothing yet of the address it leads to,
//! so whoever resolves it asks again, for each address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::Host;

const METADATA: &str = "the metadata service of a cloud";
const LINK_LOCAL: &str = "a link-local address";
const UNSPECIFIED: &str = "an unspecified address";
const MULTICAST: &str = "a multicast address";
const RESERVED: &str = "a reserved address";

/// Where clouds keep their metadata outside of the link-local block: Alibaba, Azure, Oracle.
const METADATA_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(192, 0, 0, 192),
];

/// The names under which it is known.
const METADATA_NAMES: [&str; 9] = [
    "instance-data",
    "instance-data.ec2.internal",
    "metadata",
    "metadata.azure.internal",
    "metadata.goog",
    "metadata.google.internal",
    "metadata.packet.net",
    "metadata.platformequinix.com",
    "metadata.tencentyun.com",
];

/// What an address is, where no downstream may be asked at it; reads after "it is".
pub fn refused_address(ip: IpAddr) -> Option<&'static str> {
    match ip {
        IpAddr::V4(ip) => refused_v4(ip),
        IpAddr::V6(ip) => refused_v6(ip),
    }
}

fn refused_v4(ip: Ipv4Addr) -> Option<&'static str> {
    let first = ip.octets()[0];
    if METADATA_V4.contains(&ip) || ip == Ipv4Addr::new(169, 254, 169, 254) {
        Some(METADATA)
    } else if ip.is_link_local() {
        Some(LINK_LOCAL)
    } else if first == 0 {
        Some(UNSPECIFIED)
    } else if ip.is_multicast() {
        Some(MULTICAST)
    } else if first >= 240 {
        Some(RESERVED)
    } else {
        None
    }
}

fn refused_v6(ip: Ipv6Addr) -> Option<&'static str> {
    if ip.is_loopback() {
        return None;
    }
    if ip.is_unspecified() {
        return Some(UNSPECIFIED);
    }
    match ip.segments() {
        // Amazon's services of an instance, and Google's.
        [0xfd00, 0x0ec2, ..] | [0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x0254] => Some(METADATA),
        [first, ..] if first & 0xffc0 == 0xfe80 => Some(LINK_LOCAL),
        [first, ..] if first & 0xff00 == 0xff00 => Some(MULTICAST),
        segments => refused_v4(embedded(segments)?),
    }
}

/// The IPv4 address that a packet to this IPv6 address may end at, by whichever way of translating
/// or tunnelling.
fn embedded(segments: [u16; 8]) -> Option<Ipv4Addr> {
    let (high, low) = match segments {
        // Compatible, mapped and translated (RFC 4291, RFC 2765).
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => (high, low),
        // NAT64 (RFC 6052, RFC 8215).
        [0x64, 0xff9b, 0 | 1, .., high, low] => (high, low),
        // 6to4.
        [0x2002, high, low, ..] => (high, low),
        // Teredo, which hides the address from translators by inverting it.
        [0x2001, 0, .., high, low] => (!high, !low),
        _ => return None,
    };
    let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
    Some(Ipv4Addr::new(a, b, c, d))
}

/// What a host is, where no downstream may be asked at it; reads after "it is".
///
/// Takes a name or an address in any of the spellings that a URL may have. A name that is let pass
/// may still lead to a refused address.
pub fn refused_host(host: &str) -> Option<&'static str> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    if let Ok(ip) = bare.parse() {
        return refused_address(ip);
    }
    match Host::parse(host) {
        Ok(Host::Ipv4(ip)) => refused_v4(ip),
        Ok(Host::Ipv6(ip)) => refused_v6(ip),
        Ok(Host::Domain(name)) => {
            let name = name.trim_end_matches('.');
            if name.is_empty() {
                return Some("no host at all");
            }
            METADATA_NAMES.contains(&name).then_some(METADATA)
        }
        Err(_) => Some("no name of a host"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_every_process_may_ask_is_refused_in_every_spelling() {
        let table: &[(&str, Option<&str>)] = &[
            ("169.254.169.254", Some(METADATA)),
            ("169.254.169.254.", Some(METADATA)),
            ("2852039166", Some(METADATA)),
            ("0xa9fea9fe", Some(METADATA)),
            ("0xA9.0376.43518", Some(METADATA)),
            ("0251.0376.0251.0376", Some(METADATA)),
            ("169.254.43518", Some(METADATA)),
            ("[::ffff:169.254.169.254]", Some(METADATA)),
            ("::ffff:a9fe:a9fe", Some(METADATA)),
            ("[::169.254.169.254]", Some(METADATA)),
            ("[::ffff:0:169.254.169.254]", Some(METADATA)),
            ("[64:ff9b::169.254.169.254]", Some(METADATA)),
            ("[64:ff9b:1::a9fe:a9fe]", Some(METADATA)),
            ("[2002:a9fe:a9fe::1]", Some(METADATA)),
            ("[2001:0:1::5601:5601]", Some(METADATA)),
            ("100.100.100.200", Some(METADATA)),
            ("168.63.129.16", Some(METADATA)),
            ("192.0.0.192", Some(METADATA)),
            ("[fd00:ec2::254]", Some(METADATA)),
            ("[fd20:ce::254]", Some(METADATA)),
            ("metadata.google.internal", Some(METADATA)),
            ("METADATA.Google.Internal.", Some(METADATA)),
            ("metadata", Some(METADATA)),
            ("instance-data", Some(METADATA)),
            ("169.254.170.2", Some(LINK_LOCAL)),
            ("[fe80::1]", Some(LINK_LOCAL)),
            ("[febf::1]", Some(LINK_LOCAL)),
            ("0.0.0.0", Some(UNSPECIFIED)),
            ("0", Some(UNSPECIFIED)),
            ("0.1.2.3", Some(UNSPECIFIED)),
            ("[::]", Some(UNSPECIFIED)),
            ("[::ffff:0.0.0.0]", Some(UNSPECIFIED)),
            ("224.0.0.1", Some(MULTICAST)),
            ("[ff02::1]", Some(MULTICAST)),
            ("255.255.255.255", Some(RESERVED)),
            ("240.0.0.1", Some(RESERVED)),
            ("", Some("no name of a host")),
            (".", Some("no host at all")),
            ("a b", Some("no name of a host")),
            ("fe80::1%eth0", Some("no name of a host")),
            ("1.2.3.4.5", Some("no name of a host")),
            // Internal services.
            ("localhost", None),
            ("127.0.0.1", None),
            ("0x7f.1", None),
            ("[::1]", None),
            ("10.0.0.1", None),
            ("192.168.1.1", None),
            ("172.16.0.1", None),
            ("100.64.0.1", None),
            ("[fd12:3456::1]", None),
            ("[::ffff:10.0.0.1]", None),
            ("mail.internal", None),
            ("metadata.example.com", None),
            ("[2606:4700::1111]", None),
            ("8.8.8.8", None),
        ];
        for (host, expected) in table {
            assert_eq!(refused_host(host), *expected, "{host:?}");
        }
    }
}
