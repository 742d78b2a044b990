//! Backups of a running server, over a socket in its data folder.
//!
//! A backup holds private keys, so it doesn't go over the HTTP API (decision C1). The socket answers those alone who could
//! read the data folder anyway: the user that the server runs as, and root. Whoever connects is sent a whole backup.

use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixListener;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::store::Store;
use crate::store::durable::backup_text;

/// Name of the socket in the data folder.
const SOCKET: &str = "backup.sock";

/// How long one who asks may take to read the backup; others wait meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);

/// A socket that is listened on, removed when dropped.
#[derive(Debug)]
pub struct BackupSocket {
    path: PathBuf,
    listener: UnixListener,
    /// Who owns the folder; answered as root is.
    owner: u32,
}

impl BackupSocket {
    /// Listens in a data folder that this process has locked. To be called within the asynchronous runtime.
    ///
    /// # Errors
    /// The operating system refuses, for one because the folder's path is too long for a socket.
    pub fn open(folder: &Path) -> std::io::Result<Self> {
        let path = folder.join(SOCKET);
        // One that a killed server has left; the folder is ours.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        let owner = path.metadata()?.uid();
        Ok(Self {
            path,
            listener,
            owner,
        })
    }

    /// Answers until dropped.
    pub async fn serve(self, store: Arc<Store>) {
        loop {
            let mut stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    warn!(%error, "backups can't be asked for any more");
                    return;
                }
            };
            let uid = match stream.peer_cred() {
                Ok(credentials) => credentials.uid(),
                Err(error) => {
                    warn!(%error, "a backup was refused: who asked isn't known");
                    continue;
                }
            };
            if uid != 0 && uid != self.owner {
                warn!(uid, "a backup was refused: another user asked for it");
                continue;
            }
            let of_task = store.clone();
            let text = tokio::task::spawn_blocking(move || backup_text(&of_task.image()));
            let sent = match text.await {
                Ok(Ok(text)) => match timeout(PATIENCE, stream.write_all(&text)).await {
                    Ok(written) => written.map_err(|error| error.to_string()),
                    Err(_) => Err("who asked for it doesn't read it".to_owned()),
                },
                Ok(Err(problem)) => Err(problem),
                Err(error) => Err(error.to_string()),
            };
            match sent {
                Ok(()) => info!("a backup was made"),
                Err(problem) => warn!(%problem, "a backup was not made"),
            }
        }
    }
}

impl Drop for BackupSocket {
    fn drop(&mut self) {
        // The next server removes it otherwise.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Asks the server that uses a data folder for a backup.
///
/// # Errors
/// There is none, or it doesn't answer this user.
pub fn ask(folder: &Path) -> std::io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(folder.join(SOCKET))?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text)?;
    if text.is_empty() {
        return Err(std::io::Error::new(
            ErrorKind::PermissionDenied,
            "the server refused",
        ));
    }
    Ok(text)
}
