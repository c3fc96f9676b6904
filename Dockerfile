# docker build -t intent-ledger .
# docker run --rm --network host intent-ledger
#
# Without credentials the server listens on loopback only: hence the host's network, or
# `serve --allow-unauthenticated --listen 0.0.0.0:7070 --http 0.0.0.0:7071` on one that you trust.
#
# The builder and the runtime are the same Debian, so that the C library fits.
FROM rust:1.95-slim-bookworm AS build
WORKDIR /build
# What the build reads, and no more: .dockerignore keeps the rest out, and scripts/check_helm.sh compares
# both with the sources. The benches are here since Cargo.toml names them.
COPY Cargo.toml Cargo.lock build.rs ./
COPY proto proto
COPY migrations migrations
COPY examples examples
COPY benches benches
# Targets that Cargo.toml names must be there.
COPY tests tests
COPY src src
# The caches are the builder's: what has not changed is neither fetched nor compiled again.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/build/target \
    cargo build --profile dist --locked --bin intent-ledger \
    && cp target/dist/intent-ledger /usr/local/bin/intent-ledger

# The C library, the certificates of public authorities, and no shell. `nonroot` moves with Debian's fixes;
# whoever publishes an image pins it by digest.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY LICENSE /usr/share/doc/intent-ledger/LICENSE
COPY --from=build /usr/local/bin/intent-ledger /usr/local/bin/intent-ledger
# By number, or Kubernetes could not tell that it is not root.
USER 65532:65532
# The embedded store, for who tries it without Postgres; a volume makes it outlive the container.
WORKDIR /home/nonroot
EXPOSE 7070 7071
ENTRYPOINT ["intent-ledger"]
CMD ["serve"]
