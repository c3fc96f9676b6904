# What CI runs, a piece at a time; `.ci/run` is the whole of it. Needs nothing that `./test.sh` does not install.

# every check and test, or the tests whose name contains FILTER
test *FILTER:
    ./test.sh {{FILTER}}

# format the code
fmt:
    cargo fmt

# what CI refuses to take: unformatted code, clippy's warnings
lint:
    cargo fmt --check && cargo clippy --all-targets --locked -- -D warnings

# lint the proto files and compare them with what is released
proto:
    scripts/check_proto.sh

# lint, render and validate the Helm chart, compare it and the Dockerfile with the sources
helm:
    scripts/check_helm.sh

# build the docs; a broken link is an error
docs:
    RUSTDOCFLAGS='-D warnings' cargo doc --no-deps --locked

# the story of the README, told by running it
demo:
    cargo run --release -- demo

# effects per second beside a hand-rolled table and the ceilings, in one run; `just bench --help` says more
bench *ARGS:
    cargo bench --bench effects -- {{ARGS}}

# how fast open intents are settled, and what live callers feel of it; `just bench-reconcile --help` says more
bench-reconcile *ARGS:
    cargo bench --bench reconcile -- {{ARGS}}

# what pruning a million rows costs live callers, and whether the table gets its space back
bench-retention *ARGS:
    cargo bench --bench retention -- {{ARGS}}

# the pure parts by themselves
bench-pure *ARGS:
    cargo bench --bench pure -- {{ARGS}}

# ten minutes of load; the server's memory must stay flat
soak seconds='600':
    cargo bench --bench effects -- --soak '{{seconds}}'

# the model check with one caller retrying: over a million states, some minutes
model-long:
    cargo test --release --locked --test model -- --include-ignored

# everything at once in simulated time, with faults everywhere, from so many seeds; the plain tests play 200
simulate seeds='10000':
    INTENT_LEDGER_TEST_SEEDS='{{seeds}}' cargo test --release --locked --test simulation whatever_fails -- --nocapture

# five minutes of kill -9 and faults over 1,000 effects; `cargo test` has thirty seconds of it
chaos seconds='300' actions='1000':
    INTENT_LEDGER_CHAOS_SECONDS='{{seconds}}' INTENT_LEDGER_CHAOS_ACTIONS='{{actions}}' cargo test --locked --test chaos

# licences, doubled versions, sources; needs cargo-deny
deny:
    cargo deny --locked check bans licenses sources
