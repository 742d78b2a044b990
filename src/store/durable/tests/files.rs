//! What is found where the file should be, and what becomes of it.

use std::os::unix::fs::PermissionsExt as _;

use redb::TableDefinition;

use super::*;

const RECORDS: &str = "records.redb";

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

/// The error of opening, whose text must name the place and the mend. The file is as before.
#[track_caller]
fn refused(folder: &Path, kind: DurableErrorKind, words: &[&str]) {
    let before = std::fs::read(folder.join(RECORDS)).ok();
    let error = DurableBackend::open(folder).unwrap_err();
    assert_eq!(error.kind, kind, "{error}");
    let text = error.to_string();
    assert!(text.contains(folder.to_str().unwrap()), "{text}");
    for word in words {
        assert!(text.contains(word), "{word} is not in: {text}");
    }
    assert_eq!(std::fs::read(folder.join(RECORDS)).ok(), before);
}

fn folder_with(content: &[u8]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(RECORDS), content).unwrap();
    folder
}

/// A folder with records, and the bytes of its file.
fn good() -> (tempfile::TempDir, Vec<u8>, Image) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for i in 0..20 {
        apply(&store, register(&format!("s{i}"))).unwrap();
    }
    store.apply(Transaction::from(one_of_each())).unwrap();
    let image = store.image();
    drop(store);
    let bytes = std::fs::read(folder.path().join(RECORDS)).unwrap();
    (folder, bytes, image)
}

#[test]
fn folder_and_files_are_for_their_owner_alone() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("data");
    let store = open(&folder);
    apply(&store, register("web")).unwrap();
    assert_eq!(mode(&folder), 0o700);
    for file in std::fs::read_dir(&folder).unwrap() {
        assert_eq!(mode(&file.unwrap().path()), 0o600);
    }
}

#[test]
fn a_folder_is_used_by_one_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path());
    let own = format!("process {}", std::process::id());
    refused(
        folder.path(),
        DurableErrorKind::InUse,
        &[&own, "--data-dir"],
    );
    apply(&first, register("web")).unwrap();
    drop(first);
    assert_eq!(names(&open(folder.path())), ["web"]);
}

#[test]
fn where_there_can_be_no_folder_it_is_said() {
    let parent = tempfile::tempdir().unwrap();
    let system = DurableErrorKind::System;
    refused(
        &parent.path().join("a/b"),
        system,
        &["can't be made", "make the folder"],
    );
    let file = parent.path().join("file");
    std::fs::write(&file, "text").unwrap();
    refused(&file, system, &["give the path of a folder"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "text");
    // No user may write there, whoever runs this.
    refused(Path::new("/proc/self"), system, &["/proc/self/lock"]);
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join(RECORDS)).unwrap();
    let error = DurableBackend::open(folder.path()).unwrap_err();
    assert_eq!(error.kind, system, "{error}");
}

#[test]
fn foreign_files_are_left_alone() {
    let foreign = DurableErrorKind::Foreign;
    for content in [&b""[..], b"something else entirely", &[0; 10_000]] {
        refused(
            folder_with(content).path(),
            foreign,
            &["not a file of proxycfg", "nothing was changed"],
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let other = redb::Database::create(folder.path().join(RECORDS)).unwrap();
    let transaction = other.begin_write().unwrap();
    transaction
        .open_table(TableDefinition::<u64, u64>::new("theirs"))
        .unwrap()
        .insert(1, 2)
        .unwrap();
    transaction.commit().unwrap();
    drop(other);
    refused(folder.path(), foreign, &["another program's database"]);
}

#[test]
fn a_newer_format_is_left_alone() {
    let (folder, ..) = good();
    let db = redb::Database::create(folder.path().join(RECORDS)).unwrap();
    let transaction = db.begin_write().unwrap();
    transaction
        .open_table(TableDefinition::<&str, &[u8]>::new("proxycfg.meta"))
        .unwrap()
        .insert(
            "format",
            br#"{"Format":2,"WrittenBy":"9.1.0","Later":true}"#.as_slice(),
        )
        .unwrap();
    transaction.commit().unwrap();
    drop(db);
    refused(
        folder.path(),
        DurableErrorKind::Newer,
        &[
            "format 2",
            "9.1.0",
            "up to format 1",
            "use version 9.1.0 or later",
        ],
    );
}

#[test]
fn a_file_that_was_cut_off_is_damaged() {
    let (folder, bytes, _) = good();
    for len in [
        16,
        100,
        4096,
        bytes.len() / 2,
        bytes.len() - 4096,
        bytes.len() - 1,
    ] {
        std::fs::write(folder.path().join(RECORDS), &bytes[..len]).unwrap();
        refused(
            folder.path(),
            DurableErrorKind::Damaged,
            &["damaged", "restore a backup"],
        );
    }
}

/// Wherever a byte is wrong, the file is refused as it is, unless the byte holds nothing.
#[test]
fn a_file_with_a_wrong_byte_is_refused_or_whole() {
    let (folder, bytes, image) = good();
    let path = folder.path().join(RECORDS);
    let mut damaged = 0;
    let step = bytes.len() / 400;
    for at in (0..320).chain((320..bytes.len()).step_by(step.max(1))) {
        let mut broken = bytes.clone();
        broken[at] ^= 0x41;
        std::fs::write(&path, &broken).unwrap();
        match database::check(&path, broken.clone()) {
            Ok(read) => assert_eq!(read, image, "byte {at}"),
            Err(error) => {
                let expected = [DurableErrorKind::Damaged, DurableErrorKind::Foreign];
                assert!(expected.contains(&error.kind), "byte {at}: {error}");
                if damaged % 16 == 0 {
                    assert!(DurableBackend::open(folder.path()).is_err());
                    assert_eq!(std::fs::read(&path).unwrap(), broken, "byte {at}");
                }
                damaged += 1;
            }
        }
    }
    assert!(damaged > 50, "{damaged}");
}

/// A first start that was killed leaves an unfinished file under another name.
#[test]
fn an_unfinished_new_file_is_no_obstacle() {
    let folder = tempfile::tempdir().unwrap();
    let unfinished = folder.path().join("records.redb.new");
    std::fs::write(&unfinished, "half").unwrap();
    let store = open(folder.path());
    apply(&store, register("web")).unwrap();
    assert!(!unfinished.exists());
}
