//! A disk whose flush takes a millisecond: a shim that is built here and preloaded into Postgres.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::Command,
};

use tempfile::TempDir;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/effects/slow_fsync.c");

/// The built shim, removed on drop.
pub(crate) struct SlowDisk {
    directory: TempDir,
}

impl SlowDisk {
    /// Builds it.
    ///
    /// # Panics
    /// Where there is no C compiler `cc`.
    pub(crate) fn build() -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        // Postgres may run as another user than we do.
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("it is ours");
        let disk = Self { directory };
        let built = Command::new("cc")
            .args(["-O2", "-Wall", "-Werror", "-shared", "-fPIC", SOURCE, "-ldl", "-o"])
            .arg(disk.shim())
            .status()
            .expect("a C compiler `cc`, which the lines of the slow disk need");
        assert!(built.success(), "{SOURCE} does not compile");
        disk
    }

    /// The library to preload.
    pub(crate) fn shim(&self) -> PathBuf {
        self.directory.path().join("slow_fsync.so")
    }
}
