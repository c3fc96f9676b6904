//! An address that stays ours while nobody listens on it.

use std::{io, net::SocketAddr};

use tokio::net::{TcpListener, TcpSocket};

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;

/// How often a free port is looked for: between the look and the bind another may take it.
const TRIES: usize = 8;

/// An address that is bound, so that nobody else gets its port, whether or not somebody listens.
///
/// A service that is down refuses connections, and the kernel does that only for a port on which
/// nobody listens. A port that is given back could be another program's a moment later.
pub(super) struct Port {
    address: SocketAddr,
    /// Bound and never listening.
    _held: TcpSocket,
}

impl Port {
    /// Takes an address and listens on it; port 0 takes a free one.
    pub(super) fn take(wanted: SocketAddr) -> io::Result<(Self, TcpListener)> {
        let mut tries = 0;
        loop {
            tries += 1;
            match Self::try_take(wanted) {
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse
                        && wanted.port() == 0
                        && tries < TRIES => {}
                outcome => return outcome,
            }
        }
    }

    fn try_take(wanted: SocketAddr) -> io::Result<(Self, TcpListener)> {
        // Our two sockets share the address, which would let a second simulator share it too,
        // without a word. One that shares nothing finds it taken.
        let alone = socket(wanted)?;
        alone.set_reuseaddr(true)?;
        alone.bind(wanted)?;
        let address = alone.local_addr()?;
        drop(alone);
        // Without `reuseaddr`: others that have it could listen where nobody does.
        let held = socket(address)?;
        held.set_reuseport(true)?;
        held.bind(address)?;
        let port = Self { address, _held: held };
        let listener = port.listen()?;
        Ok((port, listener))
    }

    /// The address.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Listens on it.
    pub(super) fn listen(&self) -> io::Result<TcpListener> {
        let socket = socket(self.address)?;
        // Connections of an earlier listener that are not quite gone are no reason to wait.
        socket.set_reuseaddr(true)?;
        socket.set_reuseport(true)?;
        socket.bind(self.address)?;
        socket.listen(BACKLOG)
    }
}

fn socket(address: SocketAddr) -> io::Result<TcpSocket> {
    if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[tokio::test]
    async fn a_port_is_refused_and_still_ours_while_nobody_listens() {
        let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (port, listener) = Port::take(free).unwrap();
        let address = port.address();
        let taken = Port::take(address).map(|_| ()).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);

        let connect = || tokio::net::TcpStream::connect(address);
        connect().await.unwrap();
        drop(listener);
        assert_eq!(connect().await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        // It asks to reuse the address, as most servers do.
        let another = std::net::TcpListener::bind(address).unwrap_err();
        assert_eq!(another.kind(), io::ErrorKind::AddrInUse);

        let listener = port.listen().unwrap();
        connect().await.unwrap();
        listener.accept().await.unwrap();
    }
}
