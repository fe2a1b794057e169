//! Which addresses a request may go to, once a name has been resolved.
//!
//! Holds: ranges of addresses, and the one rule for addresses that no grant names: public unicast, or nothing. Refuses to
//! know names and grants. An address is judged as it was answered: a form that carries another address inside itself (mapped,
//! translated, tunnelled) is never taken for the inner one, so a range of inner addresses does not name it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses that share their first bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    network: IpAddr,
    bits: u8,
}

impl Range {
    /// `10.0.0.0/8`, `fd00::/8`, or one address. None for anything else, also where bits beyond the length are set: such a
    /// range is not the one that its author reads.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (network, bits) = match text.split_once('/') {
            Some((network, bits)) => (network.parse::<IpAddr>().ok()?, length(bits)?),
            None => {
                let network = text.parse::<IpAddr>().ok()?;
                (network, if network.is_ipv4() { 32 } else { 128 })
            }
        };
        let most = if network.is_ipv4() { 32 } else { 128 };
        let range = Self { network, bits };
        (bits <= most && first_bits(network, bits) == first_bits(network, most)).then_some(range)
    }

    /// Whether an address of the same family lies in it.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        self.network.is_ipv4() == address.is_ipv4()
            && first_bits(self.network, self.bits) == first_bits(address, self.bits)
    }
}

/// Digits alone: `u8` itself would take a sign.
fn length(text: &str) -> Option<u8> {
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

/// The address with everything behind its first bits cut off, at the upper end of 128.
fn first_bits(address: IpAddr, bits: u8) -> u128 {
    let whole = match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    };
    match bits {
        0 => 0,
        bits => whole & u128::MAX.checked_shl(u32::from(128_u8.saturating_sub(bits))).unwrap_or(0),
    }
}

/// Everything in IPv4 that is not an ordinary address on the Internet (the registry of special-purpose addresses).
const SPECIAL_V4: &[(Ipv4Addr, u8)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8),       // this host
    (Ipv4Addr::new(10, 0, 0, 0), 8),      // private
    (Ipv4Addr::new(100, 64, 0, 0), 10),   // behind a carrier's translation
    (Ipv4Addr::new(127, 0, 0, 0), 8),     // loopback
    (Ipv4Addr::new(169, 254, 0, 0), 16),  // link-local: the metadata services of clouds
    (Ipv4Addr::new(172, 16, 0, 0), 12),   // private
    (Ipv4Addr::new(192, 0, 0, 0), 24),    // protocol assignments
    (Ipv4Addr::new(192, 0, 2, 0), 24),    // documentation
    (Ipv4Addr::new(192, 88, 99, 0), 24),  // relays of 6to4
    (Ipv4Addr::new(192, 168, 0, 0), 16),  // private
    (Ipv4Addr::new(198, 18, 0, 0), 15),   // benchmarks
    (Ipv4Addr::new(198, 51, 100, 0), 24), // documentation
    (Ipv4Addr::new(203, 0, 113, 0), 24),  // documentation
    (Ipv4Addr::new(224, 0, 0, 0), 3),     // multicast, reserved, broadcast
];

/// What is special inside of 2000::/3, the only part of IPv6 that is public at all. Loopback, mapped, translated (64:ff9b),
/// unique-local, link-local and multicast addresses all lie outside of it.
const SPECIAL_V6: &[(Ipv6Addr, u8)] = &[
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23), // protocol assignments, Teredo among them
    (Ipv6Addr::new(0x2001, 0xDB8, 0, 0, 0, 0, 0, 0), 32), // documentation
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16), // 6to4: an IPv4 address inside
    (Ipv6Addr::new(0x3FFF, 0, 0, 0, 0, 0, 0, 0), 20), // documentation
];

/// Whether an address is an ordinary one on the Internet.
pub(crate) fn is_public(address: IpAddr) -> bool {
    let special = |(network, bits): (IpAddr, u8)| Range { network, bits }.contains(address);
    match address {
        IpAddr::V4(_) => !SPECIAL_V4.iter().any(|(network, bits)| special(((*network).into(), *bits))),
        IpAddr::V6(v6) => {
            v6.segments().first().is_some_and(|first| first >> 13 == 1)
                && !SPECIAL_V6.iter().any(|(network, bits)| special(((*network).into(), *bits)))
        }
    }
}

/// Whether a request may go there: to one of the named ranges, and without any to a public address.
pub(crate) fn may_be_dialled(address: IpAddr, named: &[Range]) -> bool {
    if named.is_empty() { is_public(address) } else { named.iter().any(|range| range.contains(address)) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn only_ordinary_addresses_are_public() {
        for public in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.1",
            "100.63.255.255",
            "100.128.0.0",
            "172.15.0.1",
            "172.32.0.1",
            "192.167.1.1",
            "198.17.0.1",
            "198.20.0.1",
            "223.255.255.255",
            "2606:4700:4700::1111",
            "2a00:1450::1",
            "2001:200::1",
            "3ffe::1",
        ] {
            assert!(is_public(ip(public)), "{public} is public");
        }
        for special in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "10.255.255.255",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.0.9",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.0.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:1.1.1.1",
            "64:ff9b::7f00:1",
            "64:ff9b::101:101",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:101:101::1",
            "3fff::1",
            "fc00::1",
            "fd12:3456::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "4000::1",
        ] {
            assert!(!is_public(ip(special)), "{special} is not public");
        }
    }

    #[test]
    fn ranges_are_read_strictly() {
        for good in
            ["10.0.0.0/8", "0.0.0.0/0", "127.0.0.1", "127.0.0.1/32", "fd00::/8", "::/0", "::1", "::ffff:10.0.0.0/104"]
        {
            assert!(Range::parse(good).is_some(), "{good}");
        }
        for bad in [
            "",
            "10.0.0.0/33",
            "10.0.0.1/8",
            "10/8",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0.0.0/ 8",
            "fd00::/129",
            "fd00::1/8",
            "localhost",
            "010.0.0.0/8",
            "10.0.0.0/8/8",
            "fe80::1%lo",
        ] {
            assert!(Range::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_range_names_its_addresses_and_no_others() {
        let named = |ranges: &[&str]| ranges.iter().map(|range| Range::parse(range).unwrap()).collect::<Vec<_>>();
        let private = named(&["10.0.0.0/8", "127.0.0.1"]);
        for (address, may) in [
            ("10.1.2.3", true),
            ("127.0.0.1", true),
            ("127.0.0.2", false),
            ("11.0.0.1", false),
            // With ranges named, nothing else is left, public or not.
            ("1.1.1.1", false),
            // The same place in another form is another address.
            ("::ffff:10.1.2.3", false),
            ("2002:a01:203::", false),
            ("64:ff9b::a01:203", false),
        ] {
            assert_eq!(may_be_dialled(ip(address), &private), may, "{address}");
        }
        assert!(may_be_dialled(ip("::ffff:10.1.2.3"), &named(&["::ffff:10.0.0.0/104"])));
        assert!(!may_be_dialled(ip("10.1.2.3"), &named(&["::ffff:10.0.0.0/104"])));
        assert!(may_be_dialled(ip("1.1.1.1"), &[]) && !may_be_dialled(ip("10.1.2.3"), &[]));
    }

    proptest! {
        /// Against the textbook: bit by bit.
        #[test]
        fn a_range_holds_what_shares_its_bits(network: u32, bits in 0_u8..=32, other: u32, flip in 0_u32..32) {
            let cut = if bits == 0 { 0 } else { network & (u32::MAX << (32 - u32::from(bits))) };
            let range = Range::parse(&format!("{}/{bits}", Ipv4Addr::from_bits(cut))).unwrap();
            for address in [other, network, network ^ (1 << flip)] {
                let shared = (network ^ address).leading_zeros() >= u32::from(bits);
                prop_assert_eq!(range.contains(IpAddr::V4(Ipv4Addr::from_bits(address))), shared);
            }
        }
    }
}
