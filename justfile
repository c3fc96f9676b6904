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

# build the docs; a broken link is an error
docs:
    RUSTDOCFLAGS='-D warnings' cargo doc --no-deps --locked

# the story of the README, told by running it
demo:
    cargo run --release -- demo

# the hand-rolled table that our figures stand beside
bench url clients='16' seconds='10':
    benches/handrolled.sh '{{url}}' '{{clients}}' '{{seconds}}'

# licences, doubled versions, sources; needs cargo-deny
deny:
    cargo deny --locked check bans licenses sources
