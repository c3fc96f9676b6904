//! gRPC by hand over h2: a client that costs little, because it shares the cores with what it
//! measures. Requests are copies of an encoded one with the ids written over, and of an answer only
//! the fields are decoded that the next request needs.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures::FutureExt;
use h2::{
    RecvStream, SendStream,
    client::{ResponseFuture, SendRequest},
};
use http::{HeaderValue, Method, Request, Uri, header};
use prost::{Message, encoding};
use tokio::net::TcpStream;

/// What one stream may have received unread, and what a whole connection may.
const STREAM_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 64 * 1024 * 1024;

/// The bytes before each message: a flag, which is always 0 here, and the length.
const PREFIX_BYTES: usize = 5;

/// One HTTP/2 connection to a server. Clones share it.
#[derive(Clone)]
pub(crate) struct Connection {
    requests: SendRequest<Bytes>,
    base: String,
}

/// A method of the service, ready to be asked for.
#[derive(Clone)]
pub(crate) struct Rpc(Uri);

impl Connection {
    /// Connects to `address`, which is `host:port`.
    pub(crate) async fn open(address: &str) -> Self {
        let stream = TcpStream::connect(address).await.expect("the server takes connections");
        stream.set_nodelay(true).expect("a TCP socket");
        let (requests, connection) = h2::client::Builder::new()
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .handshake(stream)
            .await
            .expect("the server speaks HTTP/2");
        // Whoever waits for an answer hears of it when the connection breaks.
        tokio::spawn(connection.map(drop));
        Self { requests, base: format!("http://{address}/intent_ledger.v1.IntentLedgerService/") }
    }

    /// Four connections, or fewer where there are fewer callers.
    pub(crate) async fn open_for(address: &str, callers: usize) -> Vec<Self> {
        let mut connections = Vec::new();
        for _ in 0..callers.min(4) {
            connections.push(Self::open(address).await);
        }
        connections
    }

    /// The method `name`, such as `Begin`.
    pub(crate) fn rpc(&self, name: &str) -> Rpc {
        Rpc(format!("{}{name}", self.base).parse().expect("a URI"))
    }

    async fn send(&mut self, rpc: &Rpc) -> (ResponseFuture, SendStream<Bytes>) {
        let request = Request::builder()
            .method(Method::POST)
            .uri(rpc.0.clone())
            .header(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"))
            .header(header::TE, HeaderValue::from_static("trailers"))
            .body(())
            .expect("a request");
        futures::future::poll_fn(|context| self.requests.poll_ready(context))
            .await
            .expect("a server that is there");
        self.requests.send_request(request, false).expect("an open connection")
    }

    /// One unary call: an encoded message there, an encoded message back.
    ///
    /// # Panics
    /// On an error, whose text it shows: nothing that is measured here may fail.
    pub(crate) async fn call(&mut self, rpc: &Rpc, message: Bytes) -> Bytes {
        let (response, mut sending) = self.send(rpc).await;
        sending.send_data(message, true).expect("an open stream");
        let (parts, mut body) = response.await.expect("an answer").into_parts();
        let mut answer = Bytes::new();
        while let Some(chunk) = next_chunk(&mut body).await {
            answer = join(answer, chunk);
        }
        let trailers = body.trailers().await.expect("an open stream");
        let headers = trailers.as_ref().unwrap_or(&parts.headers);
        assert!(headers.get("grpc-status").is_some_and(|code| code == "0"), "{headers:?}");
        answer.advance(PREFIX_BYTES);
        answer
    }

    /// One stream of requests and answers.
    pub(crate) async fn session(mut self) -> Session {
        let rpc = self.rpc("Session");
        let (response, sending) = self.send(&rpc).await;
        Session {
            response: Some(response),
            sending,
            receiving: None,
            outgoing: BytesMut::new(),
            rest: Bytes::new(),
            _connection: self,
        }
    }
}

async fn next_chunk(body: &mut RecvStream) -> Option<Bytes> {
    let chunk = body.data().await?.expect("an open stream");
    body.flow_control().release_capacity(chunk.len()).expect("no more than was received");
    Some(chunk)
}

fn join(before: Bytes, chunk: Bytes) -> Bytes {
    if before.is_empty() {
        return chunk;
    }
    let mut whole = BytesMut::with_capacity(before.len() + chunk.len());
    whole.extend_from_slice(&before);
    whole.extend_from_slice(&chunk);
    whole.freeze()
}

/// The client's end of one `Session`.
pub(crate) struct Session {
    response: Option<ResponseFuture>,
    sending: SendStream<Bytes>,
    receiving: Option<RecvStream>,
    outgoing: BytesMut,
    /// The beginning of a message whose end has not come.
    rest: Bytes,
    _connection: Connection,
}

impl Session {
    /// Queues one item; [`flush`](Self::flush) sends what is queued.
    pub(crate) fn push(&mut self, sequence: u64, kind: Kind, item: &[u8]) {
        let length = 1
            + encoding::encoded_len_varint(sequence)
            + 1
            + encoding::encoded_len_varint(item.len() as u64)
            + item.len();
        self.outgoing.put_u8(0);
        self.outgoing.put_u32(u32::try_from(length).expect("a small message"));
        encoding::encode_key(1, encoding::WireType::Varint, &mut self.outgoing);
        encoding::encode_varint(sequence, &mut self.outgoing);
        encoding::encode_key(kind as u32, encoding::WireType::LengthDelimited, &mut self.outgoing);
        encoding::encode_varint(item.len() as u64, &mut self.outgoing);
        self.outgoing.put_slice(item);
    }

    /// Sends what is queued.
    pub(crate) fn flush(&mut self) {
        if !self.outgoing.is_empty() {
            let data = self.outgoing.split().freeze();
            self.sending.send_data(data, false).expect("an open stream");
        }
    }

    /// Waits for answers and takes all that have come.
    pub(crate) async fn answers(&mut self, into: &mut Vec<Answer>) {
        if let Some(response) = self.response.take() {
            self.receiving = Some(response.await.expect("a session").into_body());
        }
        let body = self.receiving.as_mut().expect("set above");
        loop {
            let chunk = match next_chunk(body).now_or_never() {
                Some(chunk) => chunk,
                None if into.is_empty() => next_chunk(body).await,
                None => return,
            };
            let chunk = chunk.expect("a session that its caller ends");
            self.rest = join(std::mem::take(&mut self.rest), chunk);
            while let Some(message) = message(&mut self.rest) {
                into.push(Answer::decode(message).expect("an answer"));
            }
        }
    }

    /// Ends the stream.
    pub(crate) async fn close(mut self) {
        self.sending.send_data(Bytes::new(), true).expect("an open stream");
        if let Some(body) = self.receiving.as_mut() {
            while next_chunk(body).await.is_some() {}
        }
    }
}

/// The next whole message, if all of it has come.
fn message(received: &mut Bytes) -> Option<Bytes> {
    let length = received.get(1..PREFIX_BYTES)?.get_u32() as usize;
    if received.len() < PREFIX_BYTES + length {
        return None;
    }
    received.advance(PREFIX_BYTES);
    Some(received.split_to(length))
}

/// What a session's item is, by its number in `SessionRequest`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// A `BeginRequest`.
    Begin = 2,
    /// A `CompleteRequest`.
    Complete = 3,
}

/// What is read of a `SessionResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Answer {
    /// Whose answer it is.
    #[prost(uint64, tag = "1")]
    pub(crate) sequence: u64,
    /// To a Begin.
    #[prost(message, optional, tag = "2")]
    pub(crate) begin: Option<Begun>,
    /// To a Complete.
    #[prost(message, optional, tag = "3")]
    pub(crate) complete: Option<Completed>,
    /// To either; nobody expects one.
    #[prost(bytes = "bytes", optional, tag = "7")]
    pub(crate) error: Option<Bytes>,
}

/// What is read of a `BeginResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Begun {
    /// A `Decision`.
    #[prost(int32, tag = "1")]
    pub(crate) decision: i32,
    /// The intent.
    #[prost(message, optional, tag = "3")]
    pub(crate) intent: Option<Seen>,
}

/// What is read of a `CompleteResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Completed {
    /// The intent.
    #[prost(message, optional, tag = "1")]
    pub(crate) intent: Option<Seen>,
}

/// What is read of an `Intent`; its strings are bytes of the buffer they came in.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Seen {
    /// The key.
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) key: Bytes,
    /// An `IntentState`.
    #[prost(int32, tag = "7")]
    pub(crate) state: i32,
    /// The result.
    #[prost(bytes = "bytes", optional, tag = "16")]
    pub(crate) result: Option<Bytes>,
}

/// A message behind a prefix, as a unary call sends it.
pub(crate) fn framed(message: &impl Message) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.put_u32(u32::try_from(message.encoded_len()).expect("a small message"));
    message.encode(&mut bytes).expect("a vector grows");
    bytes
}

/// An encoded message with ids in it that are written over.
pub(crate) struct Template {
    /// Behind a prefix, as a unary call sends it.
    bytes: Vec<u8>,
    holes: Vec<std::ops::Range<usize>>,
}

impl Template {
    /// `holes` are texts that stand in `message` once each.
    pub(crate) fn new(message: &impl Message, holes: &[&str]) -> Self {
        let bytes = framed(message);
        let hole = |text: &&str| {
            let at = bytes.windows(text.len()).position(|part| part == text.as_bytes());
            let at = at.expect("the text stands in the message");
            at..at + text.len()
        };
        let holes = holes.iter().map(hole).collect();
        Self { bytes, holes }
    }

    /// The message with these ids, which are as long as those they replace.
    pub(crate) fn fill(&mut self, ids: &[&[u8]]) -> &[u8] {
        for (hole, id) in self.holes.iter().zip(ids) {
            self.bytes[hole.clone()].copy_from_slice(id);
        }
        &self.bytes[PREFIX_BYTES..]
    }

    /// The same, with the prefix of a unary call.
    pub(crate) fn call(&mut self, ids: &[&[u8]]) -> Bytes {
        self.fill(ids);
        Bytes::copy_from_slice(&self.bytes)
    }
}
