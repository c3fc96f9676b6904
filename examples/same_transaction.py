"""Posts an entry to a table exactly once: the effect and its settlement are one transaction.

    same_transaction.py LEDGER_ADDRESS POSTGRES_URL

The ledger at LEDGER_ADDRESS (such as 127.0.0.1:7070) keeps its intents in the Postgres at POSTGRES_URL, and
its policy has `downstream.same_transaction = true` for the tool `post_entry`; see examples/policy.toml and
docs/same-transaction.md. Needs `psycopg[binary]`, `grpcio` and `grpcio-tools`, which makes the stubs from
the proto files here; an application would have its own.
"""

import json
import pathlib
import sys
import tempfile
import uuid

import grpc
import grpc_tools
import psycopg
from grpc_tools import protoc

LEDGER, POSTGRES = sys.argv[1:3]
PROTO = pathlib.Path(__file__).parent.parent / "proto"


def stubs():
    """The generated client of the ledger."""
    directory = tempfile.mkdtemp()
    files = [str(path) for path in (PROTO / "intent_ledger" / "v1").glob("*.proto")]
    well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    protoc.main(
        ["protoc", f"-I{PROTO}", f"-I{well_known}"]
        + [f"--python_out={directory}", f"--grpc_python_out={directory}"]
        + files
    )
    sys.path.insert(0, directory)
    from intent_ledger.v1 import ledger_service_pb2, ledger_service_pb2_grpc, reason_pb2

    return ledger_service_pb2, ledger_service_pb2_grpc, reason_pb2


ledger_pb2, ledger_grpc, reason_pb2 = stubs()


def post(ledger, database, entry_id, amount):
    """Posts the entry, unless that has happened already; says which."""
    begun = ledger.Begin(
        ledger_pb2.BeginRequest(
            identity={"tool": "post_entry", "run_id": "run-1"},
            arguments_json=json.dumps({"entry_id": entry_id, "amount": amount}),
            attempt_id=str(uuid.uuid4()),
        ),
        timeout=5,
    )
    if begun.decision == reason_pb2.DECISION_REPLAY:
        return "replayed"
    if begun.decision != reason_pb2.DECISION_EXECUTE:
        raise SystemExit(f"somebody else is at it: {begun.model_message}")
    # Both or neither: where the second statement raises, the first is rolled back. IL002 and IL003 mean that
    # somebody else was granted the right meanwhile, or has done it; ask Begin again.
    with database.transaction():
        database.execute("INSERT INTO entries (id, amount) VALUES (%s, %s)", (entry_id, amount))
        database.execute(
            "SELECT intent_ledger.complete(%s, %s, %s, 'application/json')",
            (begun.intent.key, begun.attempt_id, json.dumps({"posted": entry_id}).encode()),
        )
    return "posted"


def main():
    with grpc.insecure_channel(LEDGER) as channel, psycopg.connect(POSTGRES, autocommit=True) as database:
        # No key of its own keeps the table from having an entry twice: the ledger does.
        database.execute("CREATE TABLE IF NOT EXISTS entries (id text, amount integer)")
        ledger = ledger_grpc.IntentLedgerServiceStub(channel)
        done = post(ledger, database, "entry-1", 1200)
        (rows,) = database.execute("SELECT count(*) FROM entries WHERE id = 'entry-1'").fetchone()
        print(f"{done} entry-1: {rows} row{'s' if rows != 1 else ''}")


main()
