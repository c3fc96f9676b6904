"""Drives a running server as a Python caller would; `tests/it/python.rs` starts both.

    test_client.py PROTO_DIRECTORY GRPC_URL HTTP_URL

The stubs are generated from the public contract into a temporary directory. The last line is
`N passed, N failed`.
"""

import json
import pathlib
import re
import sys
import tempfile
import threading
import time
import unittest
import urllib.request
import uuid
from concurrent import futures

import google.protobuf
import grpc
import grpc_tools
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from grpc_tools import protoc

PROTO, GRPC, HTTP = sys.argv[1:4]

RETRIES = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{"service": "intent_ledger.v1.IntentLedgerService"}],
                "retryPolicy": {
                    "maxAttempts": 4,
                    "initialBackoff": "0.01s",
                    "maxBackoff": "0.1s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": [
                        "UNAVAILABLE",
                        "ABORTED",
                        "RESOURCE_EXHAUSTED",
                        "DEADLINE_EXCEEDED",
                    ],
                },
            }
        ]
    }
)


def generate(directory):
    """Makes the stubs and puts them on the path."""
    files = sorted(str(path) for path in pathlib.Path(PROTO, "intent_ledger").rglob("*.proto"))
    well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    status = protoc.main(
        ["protoc", f"-I{PROTO}", f"-I{well_known}"]
        + [f"--python_out={directory}", f"--grpc_python_out={directory}"]
        + files
    )
    assert status == 0, f"protoc says {status}"
    sys.path.insert(0, directory)


STUBS = tempfile.TemporaryDirectory()
generate(STUBS.name)

from intent_ledger.v1 import (  # noqa: E402
    attempt_pb2,
    intent_pb2,
    ledger_service_pb2,
    ledger_service_pb2_grpc,
    operations_service_pb2,
    operations_service_pb2_grpc,
    reason_pb2,
)


def target(url):
    return url.removeprefix("http://")


def connect(url=GRPC, retries=False):
    options = [("grpc.service_config", RETRIES)] if retries else []
    channel = grpc.insecure_channel(target(url), options=options)
    return channel, ledger_service_pb2_grpc.IntentLedgerServiceStub(channel)


def charge(order, amount=1200, memo="invoice 17", **more):
    return ledger_service_pb2.BeginRequest(
        identity=intent_pb2.Identity(tool="charge"),
        arguments_json=json.dumps({"order": order, "amount": amount, "memo": memo}),
        attempt_id=str(uuid.uuid4()),
        **more,
    )


def order():
    return f"py-{uuid.uuid4()}"


def error_info(error):
    """The google.rpc.ErrorInfo of a failed call."""
    status = rpc_status.from_call(error)
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            return info
    raise AssertionError(f"no ErrorInfo in {status}")


def metric(name, *labels):
    with urllib.request.urlopen(f"{HTTP}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    found = [line for line in lines if re.match(rf"{name}[{{ ]", line)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found if all(l in line for l in labels))


class ClientTest(unittest.TestCase):
    def setUp(self):
        self.channel, self.ledger = connect()
        self.addCleanup(self.channel.close)

    def expect(self, request, decision, reason, ledger=None):
        answer = (ledger or self.ledger).Begin(request, timeout=30)
        names = (
            reason_pb2.Decision.Name(answer.decision).removeprefix("DECISION_"),
            reason_pb2.Reason.Name(answer.reason).removeprefix("REASON_"),
        )
        self.assertEqual(names, (decision, reason), answer)
        return answer

    def complete(self, granted, result):
        return self.ledger.Complete(
            ledger_service_pb2.CompleteRequest(
                key=granted.intent.key,
                attempt_id=granted.attempt_id,
                result=result,
                result_content_type="application/json",
            ),
            timeout=30,
        )

    def test_begin_complete_replay(self):
        o = order()
        granted = self.expect(charge(o), "EXECUTE", "NEW")
        self.assertRegex(granted.downstream_key, r"^[0-9a-f]{64}$")
        self.assertGreater(granted.lease.ToSeconds(), 0)
        result = b'{"b":1,"a":1.0,"big":9007199254740993}'
        done = self.complete(granted, result)
        self.assertEqual(done.intent.state, intent_pb2.INTENT_STATE_COMPLETED)
        replay = self.expect(charge(o, memo="reworded"), "REPLAY", "COMPLETED")
        self.assertTrue(replay.intent.HasField("result"))
        self.assertEqual(replay.intent.result, result)
        self.assertEqual(list(replay.warnings), ["free_text_changed"])
        self.assertEqual(replay.attempt_id, "")
        message = json.loads(replay.model_message)
        self.assertIn("status", message)
        self.assertIn("note", message)

    def test_an_empty_result_is_a_result(self):
        o = order()
        self.complete(self.expect(charge(o), "EXECUTE", "NEW"), b"")
        replay = self.expect(charge(o), "REPLAY", "COMPLETED")
        self.assertTrue(replay.intent.HasField("result"))
        self.assertEqual(replay.intent.result, b"")

    def test_mismatch(self):
        o = order()
        self.expect(charge(o), "EXECUTE", "NEW")
        with self.assertRaises(grpc.RpcError) as raised:
            self.ledger.Begin(charge(o, amount=1250), timeout=30)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.FAILED_PRECONDITION)
        info = error_info(raised.exception)
        self.assertEqual((info.domain, info.reason), ("intent-ledger", "PARAMETERS_CHANGED"))
        self.assertEqual(info.metadata["pointers"], "/amount")
        self.assertEqual(info.metadata["effectMayHaveHappened"], "true")
        self.assertIn("nextAction", info.metadata)

    def test_a_malformed_request_names_its_field(self):
        with self.assertRaises(grpc.RpcError) as raised:
            self.ledger.Begin(
                ledger_service_pb2.BeginRequest(
                    identity=intent_pb2.Identity(tool="charge"), arguments_json="[1]"
                ),
                timeout=30,
            )
        self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertEqual(error_info(raised.exception).reason, "ARGUMENTS_NOT_OBJECT")
        violations = error_details_pb2.BadRequest()
        details = rpc_status.from_call(raised.exception).details
        self.assertTrue(any(detail.Unpack(violations) for detail in details))
        self.assertEqual(violations.field_violations[0].field, "arguments_json")

    def test_three_callers_of_one_key_are_told_in_order(self):
        """Case 3: a retry wrapper around the whole run; tool-call ids are new each time."""
        o, run = order(), f"run-{uuid.uuid4()}"

        def call(tool_call_id):
            request = charge(o, tool_call_id=tool_call_id, caller="py-1")
            request.identity.run_id = run
            return request

        granted = self.expect(call("call_1"), "EXECUTE", "NEW")
        self.complete(granted, b'{"id":"ch_1"}')
        trace = "4bf92f3577b34da6a3ce929d0e0e4736"
        for tool_call_id in ("call_3", "call_5"):
            replay = self.ledger.Begin(
                call(tool_call_id),
                timeout=30,
                metadata=[("traceparent", f"00-{trace}-00f067aa0ba902b7-01")],
            )
            self.assertEqual(replay.intent.result, b'{"id":"ch_1"}')
        operations = operations_service_pb2_grpc.IntentOperationsServiceStub(self.channel)
        key = operations_service_pb2.ListAttemptsRequest(key=granted.intent.key)
        told = operations.ListAttempts(key, timeout=30)
        self.assertEqual([it.tool_call_id for it in told.attempts], ["call_1", "call_3", "call_5"])
        self.assertEqual([it.trace_id for it in told.attempts], ["", trace, trace])
        self.assertEqual(
            [attempt_pb2.Layer.Name(it.layer) for it in told.attempts],
            ["LAYER_UNSPECIFIED", "LAYER_MODEL", "LAYER_MODEL"],
        )
        self.assertEqual((told.total_count, told.not_kept_count), (3, 0))
        stats = operations.GetStats(
            operations_service_pb2.GetStatsRequest(tool="charge"), timeout=30
        )
        self.assertGreaterEqual(stats.tools[0].begin_count, 3)

    def test_hold(self):
        o = order()
        first = charge(o)
        granted = self.expect(first, "EXECUTE", "NEW")
        held = self.expect(charge(o), "HOLD", "IN_FLIGHT")
        self.assertGreater(held.retry_after.ToSeconds(), 0)
        self.assertEqual(held.intent.attempt_id, "", "another caller's fence is not shown")
        self.assertEqual(self.expect(first, "EXECUTE", "RESENT").attempt_id, granted.attempt_id)
        self.ledger.Fail(
            ledger_service_pb2.FailRequest(
                key=granted.intent.key, attempt_id=granted.attempt_id, code="http 504"
            ),
            timeout=30,
        )
        held = self.expect(charge(o), "HOLD", "NEEDS_ATTENTION")
        self.assertEqual(held.intent.state, intent_pb2.INTENT_STATE_UNKNOWN)

    def test_lookup_long_poll(self):
        granted = self.expect(charge(order()), "EXECUTE", "NEW")
        request = ledger_service_pb2.LookupRequest(key=granted.intent.key)
        now = self.ledger.Lookup(request, timeout=30)
        self.assertEqual(now.intent.state, intent_pb2.INTENT_STATE_STARTED)
        request.wait.FromSeconds(25)
        waiting = self.ledger.Lookup.future(request, timeout=30)
        time.sleep(0.3)
        self.assertFalse(waiting.done(), "nothing has changed yet")
        completing = threading.Thread(target=self.complete, args=(granted, b"{}"))
        completing.start()
        intent = waiting.result(timeout=10).intent
        completing.join()
        self.assertEqual(intent.state, intent_pb2.INTENT_STATE_COMPLETED)
        self.assertEqual(intent.result, b"{}")

    def test_lookup_wait_ends_within_the_deadline(self):
        granted = self.expect(charge(order()), "EXECUTE", "NEW")
        request = ledger_service_pb2.LookupRequest(key=granted.intent.key)
        request.wait.FromSeconds(60)
        intent = self.ledger.Lookup(request, timeout=1).intent
        self.assertEqual(intent.state, intent_pb2.INTENT_STATE_STARTED)


    def test_a_person_decides_on_what_is_executed(self):
        """The whole way of an approval, with an orchestrator that waits meanwhile."""
        people = operations_service_pb2_grpc.IntentOperationsServiceStub(self.channel)
        spelled = '{ "order": "%s", "amount": 400.0, "memo": "first words" }' % order()

        def refund(arguments_json):
            return ledger_service_pb2.BeginRequest(
                identity=intent_pb2.Identity(tool="refund"),
                arguments_json=arguments_json,
                attempt_id=str(uuid.uuid4()),
                caller="agent-7",
            )

        asked = self.expect(refund(spelled), "AWAIT_APPROVAL", "APPROVAL_REQUIRED")
        self.assertEqual(asked.attempt_id, "")
        by_key = {"key": asked.intent.key}
        waiting = ledger_service_pb2.LookupRequest(**by_key)
        waiting.wait.seconds = 30
        with futures.ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(self.ledger.Lookup, waiting, timeout=60)
            full = ledger_service_pb2.LookupRequest(view=intent_pb2.INTENT_VIEW_FULL, **by_key)
            shown = self.ledger.Lookup(full, timeout=30).intent
            self.assertEqual(shown.arguments_json, spelled)

            def approval(actor):
                return operations_service_pb2.ApproveIntentRequest(
                    key=shown.key, etag=shown.etag, reason="the parcel came back", actor=actor
                )

            with self.assertRaises(grpc.RpcError) as own:
                people.ApproveIntent(approval("agent-7"), timeout=30)
            self.assertEqual(own.exception.code(), grpc.StatusCode.PERMISSION_DENIED)
            self.assertEqual(error_info(own.exception).metadata["nextAction"], "ASK_ANOTHER_PERSON")
            people.ApproveIntent(approval("ada"), timeout=30)
            heard = waiter.result(60).intent
        self.assertEqual(heard.state, intent_pb2.INTENT_STATE_APPROVED)
        with self.assertRaises(grpc.RpcError) as late:
            denial = operations_service_pb2.DenyIntentRequest(
                key=shown.key, etag=shown.etag, reason="no", actor="bob"
            )
            people.DenyIntent(denial, timeout=30)
        self.assertEqual(error_info(late.exception).reason, "ALREADY_DECIDED")

        reworded = json.loads(spelled) | {"memo": "other words"}
        granted = self.expect(refund(json.dumps(reworded)), "EXECUTE", "APPROVED")
        self.assertEqual(granted.approved_arguments_json, spelled)
        self.complete(granted, b'{"id":"re_1"}')
        replay = self.expect(refund(spelled), "REPLAY", "COMPLETED")
        self.assertEqual(replay.intent.result, b'{"id":"re_1"}')


class RetryingClientTest(ClientTest):
    """Case 40: all of the above with a client that retries by itself."""

    def setUp(self):
        self.channel, self.ledger = connect(retries=True)
        self.addCleanup(self.channel.close)

    def test_the_server_sees_one_call_of_each(self):
        o = order()
        self.expect(charge(o), "EXECUTE", "NEW")
        begins, errors = metric("intent_ledger_begins_total"), metric("intent_ledger_errors_total")
        held = metric("intent_ledger_begins_total", 'tool="charge"', 'decision="HOLD"')
        self.expect(charge(o), "HOLD", "IN_FLIGHT")
        self.assertEqual(metric("intent_ledger_begins_total"), begins + 1)
        label = ('tool="charge"', 'decision="HOLD"')
        self.assertEqual(metric("intent_ledger_begins_total", *label), held + 1)
        with self.assertRaises(grpc.RpcError):
            self.ledger.Begin(charge(o, amount=1250), timeout=30)
        self.assertEqual(metric("intent_ledger_errors_total"), errors + 1)
        self.assertEqual(metric("intent_ledger_begins_total"), begins + 1)

    def test_callers_cannot_mint_metric_labels(self):
        name, unlisted = f"made-up-{uuid.uuid4()}", 'tool="(unlisted)"'
        before = metric("intent_ledger_begins_total", unlisted)
        request = charge(order())
        request.identity.tool, request.identity.idempotency_key = name, order()
        self.expect(request, "EXECUTE", "NEW")
        self.assertEqual(metric("intent_ledger_begins_total", unlisted), before + 1)
        self.assertEqual(metric("intent_ledger_begins_total", name), 0)

    def test_the_client_does_retry(self):
        """Without this the test above would prove nothing."""
        calls = []

        class Overloaded(ledger_service_pb2_grpc.IntentLedgerServiceServicer):
            def Begin(self, request, context):
                calls.append(request.attempt_id)
                context.abort(grpc.StatusCode.UNAVAILABLE, "overloaded")

        server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
        ledger_service_pb2_grpc.add_IntentLedgerServiceServicer_to_server(Overloaded(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        channel, ledger = connect(f"127.0.0.1:{port}", retries=True)
        with self.assertRaises(grpc.RpcError):
            ledger.Begin(charge(order()), timeout=30)
        channel.close()
        server.stop(None)
        self.assertEqual((len(calls), len(set(calls))), (4, 1))


def main():
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules[__name__])
    outcome = unittest.TextTestRunner(verbosity=2).run(suite)
    failed = len(outcome.failures) + len(outcome.errors)
    print(f"protobuf {google.protobuf.__version__}, grpcio {grpc.__version__}")
    print(f"{outcome.testsRun - failed} passed, {failed} failed")
    return 0 if failed == 0 and outcome.testsRun > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
