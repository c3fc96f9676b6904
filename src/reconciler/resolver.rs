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
