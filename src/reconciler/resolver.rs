//! Names to addresses, without the addresses that nobody should be asked at.
//!
//! A policy may only name addresses that are allowed; a name could still lead to another one.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::policy::status::refused_address;

/// The addresses of a host; an error where all of them are refused.
pub(super) async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    // A literal IPv6 address stands in brackets in a URL.
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let found: Vec<SocketAddr> = match bare.parse::<IpAddr>() {
        Ok(address) => vec![SocketAddr::new(address, port)],
        Err(_) => tokio::net::lookup_host((host, port)).await?.collect(),
    };
    allowed(host, found)
}

fn allowed(host: &str, found: Vec<SocketAddr>) -> io::Result<Vec<SocketAddr>> {
    let refused = found.iter().find_map(|address| refused_address(address.ip()));
    let allowed: Vec<SocketAddr> =
        found.into_iter().filter(|address| refused_address(address.ip()).is_none()).collect();
    match (allowed.is_empty(), refused) {
        (false, _) => Ok(allowed),
        (true, Some(why)) => Err(io::Error::other(format!("{host} leads to {why}"))),
        (true, None) => Err(io::Error::other(format!("{host} has no address"))),
    }
}

/// The same for the HTTP client.
pub(super) struct Resolver;

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let addresses = resolve(name.as_str(), 0).await?;
            let addresses: Addrs = Box::new(addresses.into_iter());
            Ok(addresses)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A way to write the address of the metadata service that is no literal address to us, so that it is
    /// looked up like a name.
    const NAME: &str = "169.254.43518";

    #[tokio::test]
    async fn a_name_that_leads_to_a_refused_address_is_not_asked() {
        assert!(NAME.parse::<IpAddr>().is_err());
        let looked_up: Vec<SocketAddr> =
            tokio::net::lookup_host((NAME, 80)).await.expect("it resolves").collect();
        assert_eq!(looked_up, [SocketAddr::from(([169, 254, 169, 254], 80))]);
        let why = resolve(NAME, 80).await.expect_err("it is refused").to_string();
        assert!(why.starts_with(&format!("{NAME} leads to ")), "{why}");
        // And by the client's own road.
        let name: Name = NAME.parse().expect("a name");
        let Err(again) = Resolver.resolve(name).await else { panic!("it is refused") };
        assert_eq!(again.to_string(), why);
    }

    #[test]
    fn of_several_addresses_those_that_are_refused_are_left_out() {
        let fine = SocketAddr::from(([127, 0, 0, 1], 80));
        let refused = SocketAddr::from(([169, 254, 169, 254], 80));
        assert_eq!(allowed("h", vec![refused, fine, refused]).expect("one is left"), [fine]);
        assert!(allowed("h", vec![refused]).is_err());
        let none = allowed("h", Vec::new()).expect_err("none").to_string();
        assert_eq!(none, "h has no address");
    }
}
