//! Backups: made, read, refused, restored.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

fn as_is(_: &mut Image) -> Result<(), DurableError> {
    Ok(())
}

/// A folder whose store holds one row in each table.
fn filled() -> (tempfile::TempDir, Image) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.apply(Transaction::from(one_of_each())).unwrap();
    (folder, store.image())
}

#[test]
fn what_was_saved_is_what_is_restored() {
    let (folder, image) = filled();
    let there = tempfile::tempdir().unwrap();
    let file = there.path().join("backup");
    assert_eq!(backup(folder.path(), &file).unwrap(), image.index);
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(read_backup(&file).unwrap(), image);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(
        text.contains("OWN KEY"),
        "a backup without its keys is none"
    );

    let new = there.path().join("new");
    assert_eq!(restore(&file, &new, false, as_is).unwrap(), image.index);
    assert_eq!(open(&new).image(), image);
    // Again over itself: the index goes on.
    let error = restore(&file, &new, false, as_is).unwrap_err();
    assert_eq!(error.kind, DurableErrorKind::NotEmpty);
    assert!(error.to_string().contains("--force"), "{error}");
    assert_eq!(restore(&file, &new, true, as_is).unwrap(), image.index + 1);
    let restored = open(&new);
    assert_eq!(restored.image().rows, image.rows);
    let store_index = apply(&restored, register("web")).unwrap();
    assert_eq!(store_index, image.index + 2);
}

#[test]
fn what_can_not_be_restored_changes_nothing() {
    let (folder, image) = filled();
    let there = tempfile::tempdir().unwrap();
    let file = there.path().join("backup");
    backup(folder.path(), &file).unwrap();
    let refuse = |_: &mut Image| {
        let problem = DurableError::new(DurableErrorKind::Record, folder.path(), "no", "no");
        Err(problem)
    };
    assert!(restore(&file, folder.path(), true, refuse).is_err());
    assert_eq!(open(folder.path()).image(), image);

    let running = open(folder.path());
    let in_use = DurableErrorKind::InUse;
    assert_eq!(backup(folder.path(), &file).unwrap_err().kind, in_use);
    let error = restore(&file, folder.path(), true, as_is).unwrap_err();
    assert_eq!(error.kind, in_use);
    assert_eq!(running.image(), image);
}

#[test]
fn a_damaged_folder_is_replaced_by_force() {
    let (folder, image) = filled();
    let there = tempfile::tempdir().unwrap();
    let file = there.path().join("backup");
    backup(folder.path(), &file).unwrap();
    let records = folder.path().join("records.redb");
    std::fs::write(&records, "broken").unwrap();
    let error = backup(folder.path(), &there.path().join("other")).unwrap_err();
    assert_eq!(error.kind, DurableErrorKind::Foreign);
    restore(&file, folder.path(), true, as_is).unwrap();
    assert_eq!(open(folder.path()).image(), image);
}

#[test]
fn a_backup_that_is_not_whole_is_refused() {
    let (folder, image) = filled();
    let file = folder.path().join("backup");
    write_backup(&image, &file).unwrap();
    let bytes = std::fs::read(&file).unwrap();
    let ends = bytes.iter().enumerate().filter(|(_, b)| **b == b'\n');
    let mut cuts: Vec<usize> = ends.map(|(at, _)| at + 1).collect();
    assert_eq!(cuts.pop(), Some(bytes.len()));
    cuts.extend([0, 10, bytes.len() / 2, bytes.len() - 10]);
    for cut in cuts {
        std::fs::write(&file, &bytes[..cut]).unwrap();
        let error = read_backup(&file).unwrap_err();
        let expected = [DurableErrorKind::Damaged, DurableErrorKind::Foreign];
        assert!(expected.contains(&error.kind), "{cut}: {error}");
    }
    for at in 0..bytes.len() - 1 {
        let mut broken = bytes.clone();
        broken[at] ^= 1;
        std::fs::write(&file, &broken).unwrap();
        let error = read_backup(&file).expect_err("a wrong byte");
        assert!(!error.to_string().contains("OWN KEY"), "{error}");
    }
}

#[test]
fn a_newer_backup_is_refused() {
    let (folder, image) = filled();
    let file = folder.path().join("backup");
    write_backup(&image, &file).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let newer = text.replacen("\"Version\":1", "\"Version\":2", 1);
    std::fs::write(&file, newer).unwrap();
    let error = read_backup(&file).unwrap_err();
    assert_eq!(error.kind, DurableErrorKind::Newer, "{error}");
}

#[test]
fn only_backups_are_replaced() {
    let (folder, image) = filled();
    let file = folder.path().join("backup");
    write_backup(&image, &file).unwrap();
    write_backup(&image, &file).unwrap();
    std::fs::write(&file, "precious").unwrap();
    let error = write_backup(&image, &file).unwrap_err();
    assert_eq!(error.kind, DurableErrorKind::Foreign, "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    let error = write_backup(&image, &folder.path().join("a/b")).unwrap_err();
    assert!(error.to_string().contains("make the folder"), "{error}");
}

#[test]
fn there_must_be_something_to_save() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("backup");
    let error = backup(folder.path(), &file).unwrap_err();
    assert_eq!(error.kind, DurableErrorKind::Missing);
    let error = backup(&folder.path().join("none"), &file).unwrap_err();
    assert_eq!(error.kind, DurableErrorKind::System);
    assert!(!file.exists());
}
