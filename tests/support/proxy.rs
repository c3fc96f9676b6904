//! A road to Postgres that breaks where a test says.
//!
//! It forwards whole messages of Postgres's protocol, so that a break is at a certain byte of a
//! transaction however TCP cuts the stream.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// What the store's write transaction begins with: a message of its own, or the one that is all of it.
const BEGIN: &[u8] = b"BEGIN";
const AT_ONCE: &[u8] = b"SELECT * FROM pg_temp.write_";

/// What happens to the next write transaction; only to that one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection breaks after so many bytes of the request, counted from its BEGIN.
    CutRequest(usize),
    /// So many bytes of the answer arrive; the connection breaks once the server has committed.
    CutAnswer(usize),
    /// Everything arrives but the answer to COMMIT; the connection breaks then.
    SwallowCommit,
    /// No byte of the answer arrives, and the connection stays open.
    Silence,
}

/// The write transaction that a connection is at.
#[derive(Debug, Clone, Copy, Default)]
struct Now {
    fault: Option<Fault>,
    /// It is one message, and commits with its Sync.
    at_once: bool,
}

/// Where the messages of the last whole write transaction ended, in bytes from its BEGIN.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seams {
    pub(crate) request: Vec<usize>,
    pub(crate) answer: Vec<usize>,
}

#[derive(Debug, Default)]
struct Shared {
    armed: Option<Fault>,
    seams: Seams,
    statements: BTreeSet<String>,
}

/// A proxy in front of one Postgres.
pub(crate) struct Proxy {
    /// The address of the database behind it, by way of the proxy.
    pub(crate) url: String,
    shared: Arc<Mutex<Shared>>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// A proxy in front of the database at `url`, without a fault.
    pub(crate) async fn start(url: &str) -> Self {
        let (credentials, rest) = url.rsplit_once('@').expect("the URL names a user");
        let (upstream, database) = rest.split_once('/').expect("the URL names a database");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap();
        let shared = Arc::<Mutex<Shared>>::default();
        let (upstream, known) = (upstream.to_owned(), Arc::clone(&shared));
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (upstream, known) = (upstream.clone(), Arc::clone(&known));
                tokio::spawn(async move {
                    if let Ok(server) = TcpStream::connect(upstream).await {
                        forward(client, server, &known).await;
                    }
                });
            }
        });
        Self { url: format!("{credentials}@{own}/{database}"), shared, accepting }
    }

    /// Breaks the next write transaction.
    pub(crate) fn arm(&self, fault: Fault) {
        self.shared.lock().unwrap().armed = Some(fault);
    }

    /// Whether the fault has met its transaction.
    pub(crate) fn is_spent(&self) -> bool {
        self.shared.lock().unwrap().armed.is_none()
    }

    pub(crate) fn seams(&self) -> Seams {
        self.shared.lock().unwrap().seams.clone()
    }

    /// The text of every statement that has passed, whole.
    pub(crate) fn statements(&self) -> BTreeSet<String> {
        self.shared.lock().unwrap().statements.clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Both directions, until one of them ends or breaks.
async fn forward(client: TcpStream, server: TcpStream, shared: &Mutex<Shared>) {
    let now = Mutex::new(Now::default());
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        _ = requests(from_client, to_server, shared, &now) => {}
        _ = answers(from_server, to_client, shared, &now) => {}
    }
}

async fn requests(
    mut client: impl AsyncRead + Unpin,
    mut server: impl AsyncWrite + Unpin,
    shared: &Mutex<Shared>,
    now: &Mutex<Now>,
) -> Option<()> {
    // The first message has no type.
    server.write_all(&message(&mut client, false).await?).await.ok()?;
    let mut inside = false;
    let mut prepared = HashMap::new();
    let mut commits = false;
    loop {
        let message = message(&mut client, true).await?;
        if let Some(statement) = statement(&message) {
            shared.lock().unwrap().statements.insert(statement);
        }
        let text = text_run(&message, &mut prepared);
        let begins = |with: &[u8]| text.as_deref().is_some_and(|text| text.starts_with(with));
        if begins(BEGIN) || begins(AT_ONCE) {
            let mut shared = shared.lock().unwrap();
            *now.lock().unwrap() = Now { fault: shared.armed.take(), at_once: begins(AT_ONCE) };
            shared.seams = Seams::default();
            inside = true;
        }
        if inside {
            let sent = {
                let seams = &mut shared.lock().unwrap().seams.request;
                let sent = seams.last().copied().unwrap_or(0);
                seams.push(sent + message.len());
                sent
            };
            let cut = match now.lock().unwrap().fault {
                Some(Fault::CutRequest(after)) if after <= sent + message.len() => Some(after),
                _ => None,
            };
            if let Some(after) = cut {
                server.write_all(&message[..after - sent]).await.ok()?;
                return None;
            }
        }
        commits |= text.as_deref() == Some(b"COMMIT") || begins(AT_ONCE);
        // A simple query ends itself, a prepared one with its Sync.
        if commits && matches!(message[0], b'Q' | b'S') {
            (inside, commits) = (false, false);
        }
        server.write_all(&message).await.ok()?;
    }
}

async fn answers(
    mut server: impl AsyncRead + Unpin,
    mut client: impl AsyncWrite + Unpin,
    shared: &Mutex<Shared>,
    now: &Mutex<Now>,
) -> Option<()> {
    let mut arrived = 0;
    let mut inside = false;
    let mut committed = false;
    loop {
        let message = message(&mut server, true).await?;
        let Now { fault, at_once } = *now.lock().unwrap();
        let begins = if at_once {
            message[0] == b'2' // its parameters are taken
        } else {
            message[0] == b'C' && &message[5..] == b"BEGIN\0"
        };
        let commits = if at_once {
            message[0] == b'Z'
        } else {
            message[0] == b'C' && &message[5..] == b"COMMIT\0"
        };
        if begins {
            (arrived, inside, committed) = (0, true, false);
        }
        let passing = match fault {
            None | Some(Fault::CutRequest(_)) => message.len(),
            Some(Fault::CutAnswer(after)) => after.saturating_sub(arrived).min(message.len()),
            Some(Fault::SwallowCommit) if commits => 0,
            Some(Fault::SwallowCommit) => message.len(),
            Some(Fault::Silence) => 0,
        };
        arrived += message.len();
        committed |= commits;
        if inside {
            shared.lock().unwrap().seams.answer.push(arrived);
        }
        // Ready for the next query: the transaction's last word. What is sent after it is no write.
        if committed && message[0] == b'Z' {
            inside = false;
            now.lock().unwrap().at_once = false;
        }
        client.write_all(&message[..passing]).await.ok()?;
        let cuts = matches!(fault, Some(Fault::CutAnswer(_) | Fault::SwallowCommit));
        if commits && cuts {
            return None;
        }
    }
}

/// The text of the statement that a message runs: a simple query, or one that was prepared before.
fn text_run(message: &[u8], prepared: &mut HashMap<Vec<u8>, Vec<u8>>) -> Option<Vec<u8>> {
    let mut texts = message[5..].split(|byte| *byte == 0).map(<[u8]>::to_vec);
    match message[0] {
        b'Q' => texts.next(),
        b'P' => {
            let (name, text) = (texts.next()?, texts.next()?);
            prepared.insert(name, text);
            None
        }
        // Bind: the portal, then the statement.
        b'B' => prepared.get(&texts.nth(1)?).cloned(),
        _ => None,
    }
}

/// The text of a simple query, or of a statement to prepare.
fn statement(message: &[u8]) -> Option<String> {
    let mut texts = message[5..].split(|byte| *byte == 0);
    let text = match message[0] {
        b'Q' => texts.next(),
        // Its name comes first.
        b'P' => texts.nth(1),
        _ => None,
    }?;
    Some(String::from_utf8_lossy(text).into_owned())
}

/// One message of the protocol, with its type, if it has one, and its length.
async fn message(from: &mut (impl AsyncRead + Unpin), typed: bool) -> Option<Vec<u8>> {
    let head = if typed { 5 } else { 4 };
    let mut bytes = vec![0; head];
    from.read_exact(&mut bytes).await.ok()?;
    let length = u32::from_be_bytes(bytes[head - 4..].try_into().unwrap()) as usize;
    bytes.resize(head - 4 + length, 0);
    from.read_exact(&mut bytes[head..]).await.ok()?;
    Some(bytes)
}
