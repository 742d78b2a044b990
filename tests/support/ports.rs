//! Loopback ports that no other test uses.
//!
//! A port is held by a lock on a file, machine-wide and until the process ends, so tests that run in parallel, in
//! threads or in processes, never get the same one. Ports come from below the range that the operating system gives to
//! outgoing connections, and away from the defaults of Consul and Envoy.

use std::fs::{File, OpenOptions};
use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;

use socket2::{Domain, Socket, Type};

const PORTS: Range<u16> = 22_000..32_000;

static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// A free TCP port on 127.0.0.1, this process's own until it ends.
///
/// # Panics
/// No port is left, or the lock files can't be made.
pub fn free_port() -> u16 {
    free_ports(1)
}

/// The first of `count` free TCP ports in a row on 127.0.0.1, this process's own until it ends.
///
/// # Panics
/// As of [`free_port`].
pub fn free_ports(count: u16) -> u16 {
    let folder = std::env::temp_dir().join("proxycfg-test-ports");
    std::fs::create_dir_all(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let span = PORTS.end - PORTS.start;
    // Processes start at different places, so that they seldom try the same port.
    let start = u16::try_from(std::process::id().wrapping_mul(7919) % u32::from(span)).unwrap();
    for step in 0..span {
        let first = PORTS.start + (start + step) % span;
        let row = first..first.saturating_add(count);
        if row.end > PORTS.end {
            continue;
        }
        let locks: Option<Vec<File>> = row.map(|port| hold(&folder, port)).collect();
        if let Some(locks) = locks {
            HELD.lock().unwrap().extend(locks);
            return first;
        }
    }
    panic!(
        "no free port in {PORTS:?}; are the files in {} ours?",
        folder.display()
    );
}

/// The lock of a port, if nobody has it and the port is free.
fn hold(folder: &Path, port: u16) -> Option<File> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(folder.join(port.to_string()))
        .ok()?;
    file.try_lock().ok()?;
    is_free(port).then_some(file)
}

/// Whether nobody listens there. Asked without listening: a program that another thread starts at this moment has a copy of the
/// socket until it is itself, and would keep the port from whoever asks for it.
fn is_free(port: u16) -> bool {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let bound = Socket::new(Domain::IPV4, Type::STREAM, None).and_then(|socket| {
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())
    });
    bound.is_ok()
}

/// `127.0.0.1:PORT` with a [`free_port`].
pub fn free_address() -> String {
    format!("127.0.0.1:{}", free_port())
}
