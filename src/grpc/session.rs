//! Session: the same calls, many in flight on one stream.
//!
//! Answers come as they are ready. An item's error is its own answer and never ends the stream.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures::{FutureExt, StreamExt};
use prost::Message;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::service::{Answers, LedgerService, refuse};
use crate::{
    clock::Deadline,
    domain::repeat::TraceId,
    ledger::{LedgerError, Violation},
    proto::v1::{SessionRequest, SessionResponse, session_request, session_response},
};

/// Items of one stream that may be under way. Past that the stream is not read, so that HTTP/2's
/// flow control holds the sender up instead of our memory growing.
const ITEMS_MAX: usize = 2048;

const ITEMS_MAX_U32: u32 = 2048;

/// Answers that may wait for the receiver; what is over keeps its item under way.
const ANSWERS_MAX: usize = 256;

/// KiB of answers of one stream that may wait for the receiver. While there are more, no further item is
/// read: who asks for large results and does not take them must not fill our memory with them.
const ANSWERS_KIB_MAX: u32 = 4096;

/// What the stream says once for all its items.
type OfAll = (Deadline, Option<TraceId>);

/// Serves a stream until the caller ends it, its deadline passes, or the server drains.
pub(super) fn run(
    service: LedgerService,
    mut requests: Streaming<SessionRequest>,
    of_all: OfAll,
) -> Answers<SessionResponse> {
    let (answers, stream) = mpsc::channel(ANSWERS_MAX);
    tokio::spawn(async move {
        let under_way = Arc::new(Semaphore::new(ITEMS_MAX));
        let waiting = Arc::new(Semaphore::new(ANSWERS_KIB_MAX as usize));
        let end = loop {
            let room = Arc::clone(&under_way).acquire_owned();
            let Ok(room) = room.await else { return };
            // Behind every answer that waits for its room.
            drop(waiting.acquire().await);
            let next = service.draining().run_until_cancelled(requests.message());
            let request = match next.await {
                Some(Ok(Some(request))) => request,
                Some(Ok(None)) => break None,
                // What was sent after it is unread, so the sender must not take it for answered.
                Some(Err(broken)) => break Some(broken),
                None => break Some(refuse(LedgerError::Stopping)),
            };
            let service = service.clone();
            let (answers, waiting) = (answers.clone(), Arc::clone(&waiting));
            tokio::spawn(async move {
                let answer = guarded_item(&service, request, of_all).await;
                let size = u32::try_from(answer.encoded_len() / 1024).unwrap_or(u32::MAX);
                let kept = waiting.acquire_many_owned(size.saturating_add(1).min(ANSWERS_KIB_MAX));
                answers.send((Ok(answer), kept.await.ok())).await.ok();
                drop(room);
            });
        };
        // A status ends the stream, so every item under way is answered before it.
        if let Some(status) = end
            && under_way.acquire_many(ITEMS_MAX_U32).await.is_ok()
        {
            answers.send((Err(status), None)).await.ok();
        }
    });
    // Its room is free once an answer is taken.
    Box::pin(ReceiverStream::new(stream).map(|(answer, _kept)| answer))
}

/// One item; a fault of ours in it is its answer, as for a unary call, and not a silence.
async fn guarded_item(
    service: &LedgerService,
    request: SessionRequest,
    of_all: OfAll,
) -> SessionResponse {
    let sequence = request.sequence;
    let answer = AssertUnwindSafe(item(service, request, of_all)).catch_unwind();
    answer.await.unwrap_or_else(|_| {
        let fault = refuse(LedgerError::Internal("an item panicked".to_owned()));
        SessionResponse { sequence, item: Some(session_response::Item::Error(error(&fault))) }
    })
}

async fn item(
    service: &LedgerService,
    request: SessionRequest,
    (deadline, trace_id): OfAll,
) -> SessionResponse {
    use session_request::Item as Asked;
    use session_response::Item as Answered;
    // Boxed, each in its own size: a task is copied several times before it runs.
    let answer = match request.item {
        Some(Asked::Begin(request)) => {
            Box::pin(service.do_begin(request, deadline, trace_id)).await.map(Answered::Begin)
        }
        Some(Asked::Complete(request)) => {
            Box::pin(service.do_complete(request, deadline)).await.map(Answered::Complete)
        }
        Some(Asked::Fail(request)) => {
            Box::pin(service.do_fail(request, deadline)).await.map(Answered::Fail)
        }
        Some(Asked::Extend(request)) => {
            Box::pin(service.do_extend(request, deadline)).await.map(Answered::Extend)
        }
        Some(Asked::Lookup(request)) => {
            Box::pin(service.do_lookup(request, deadline)).await.map(Answered::Lookup)
        }
        None => Err(refuse(Violation::new(
            "item",
            "SESSION_ITEM_REQUIRED",
            "must be a begin, complete, fail, extend or lookup",
        ))),
    };
    SessionResponse {
        sequence: request.sequence,
        item: Some(answer.unwrap_or_else(|status| Answered::Error(error(&status)))),
    }
}

/// A status as a message: its details are one already.
fn error(status: &Status) -> tonic_types::Status {
    let details = tonic_types::Status::decode(status.details());
    details.ok().filter(|details| details.code != 0).unwrap_or_else(|| tonic_types::Status {
        code: status.code().into(),
        message: status.message().to_owned(),
        details: Vec::new(),
    })
}
