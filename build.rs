//! Generates the Rust form of the public contract from `proto/`, without a system protoc.

use std::{env, error::Error, fs, path::PathBuf};

use protox::prost::Message;

const INCLUDE: &str = "proto";
/// The services; what they import comes along.
const SERVICES: [&str; 3] = [
    "intent_ledger/v1/ledger_service.proto",
    "intent_ledger/v1/operations_service.proto",
    "intent_ledger/status/v1/effect_status_service.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={INCLUDE}/google");
    println!("cargo::rerun-if-changed={INCLUDE}/intent_ledger");

    // With source info, so that the comments become rustdoc and are shown by reflection, and with
    // imports, so that reflection can answer for every file.
    let descriptors = protox::compile(SERVICES, [INCLUDE])?;

    let out_dir = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out_dir.join("intent_ledger_descriptor.bin"), descriptors.encode_to_vec())?;

    tonic_prost_build::configure()
        // Ordered maps: the same message is the same bytes every time.
        .btree_map(".")
        .extern_path(".google.rpc.Status", "::tonic_types::Status")
        .compile_fds(descriptors)?;
    Ok(())
}
