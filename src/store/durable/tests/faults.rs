//! Disks that fail, are full, or lose what wasn't synced.

use parking_lot::Mutex;
use redb::StorageBackend;

use super::*;
use crate::store::durable::database::check;

/// A disk in memory that knows what a power cut would leave.
#[derive(Debug, Clone, Default)]
struct Disk(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    /// What the process sees.
    now: Vec<u8>,
    /// What is certainly there after a power cut.
    synced: Vec<u8>,
    /// What may be there, in parts, in any order.
    unsynced: Vec<Write>,
    /// After how many operations all fail.
    fails_after: Option<usize>,
}

#[derive(Debug, Clone)]
enum Write {
    Len(usize),
    Data(usize, Vec<u8>),
}

impl Write {
    fn to(&self, content: &mut Vec<u8>) {
        match self {
            Self::Len(len) => content.resize(*len, 0),
            Self::Data(at, data) => {
                if content.len() < at + data.len() {
                    content.resize(at + data.len(), 0);
                }
                content[*at..at + data.len()].copy_from_slice(data);
            }
        }
    }
}

impl Inner {
    fn step(&mut self) -> std::io::Result<()> {
        match &mut self.fails_after {
            Some(0) => Err(std::io::ErrorKind::StorageFull.into()),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn write(&mut self, write: Write) -> std::io::Result<()> {
        self.step()?;
        write.to(&mut self.now);
        self.unsynced.push(write);
        Ok(())
    }

    /// What a power cut leaves: of each write since the last sync, those sectors that `luck` says.
    fn after_power_cut(&self, mut luck: impl FnMut() -> bool) -> Vec<u8> {
        const SECTOR: usize = 512;
        let mut left = self.synced.clone();
        for write in &self.unsynced {
            match write {
                Write::Len(_) => write.to(&mut left),
                Write::Data(at, data) => {
                    for (i, sector) in data.chunks(SECTOR).enumerate() {
                        if luck() {
                            Write::Data(at + i * SECTOR, sector.to_vec()).to(&mut left);
                        }
                    }
                }
            }
        }
        left
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> Result<u64, std::io::Error> {
        Ok(self.0.lock().now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), std::io::Error> {
        let at = offset as usize;
        out.copy_from_slice(&self.0.lock().now[at..at + out.len()]);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), std::io::Error> {
        self.0.lock().write(Write::Len(len as usize))
    }

    fn sync_data(&self) -> Result<(), std::io::Error> {
        let mut inner = self.0.lock();
        inner.step()?;
        inner.synced = inner.now.clone();
        inner.unsynced.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), std::io::Error> {
        self.0
            .lock()
            .write(Write::Data(offset as usize, data.to_vec()))
    }
}

fn path() -> &'static Path {
    Path::new("records")
}

fn store_on(disk: &Disk) -> Store {
    let of_opener = disk.clone();
    let opener = move || database::open(of_opener.clone());
    let bytes = disk.0.lock().now.clone();
    let image = (!bytes.is_empty()).then(|| check(path(), bytes).unwrap());
    let backend = DurableBackend::over(path().to_owned(), Box::new(opener), image, None).unwrap();
    Store::new(Box::new(backend), Arc::new(AllowAll)).unwrap()
}

/// Whatever operation of the disk is the first to fail: the write is refused, nothing of it is seen, and when the disk works
/// again all goes on as if the write had never been tried.
#[test]
fn a_full_disk_refuses_writes_and_loses_nothing() {
    let mut failed = 0;
    for fails_after in 0.. {
        let disk = Disk::default();
        let store = store_on(&disk);
        apply(&store, register("a")).unwrap();
        disk.0.lock().fails_after = Some(fails_after);
        let refused = apply(&store, register("b"));
        if let Err(error) = &refused {
            failed += 1;
            let text = error.to_string();
            assert!(text.contains("make room on the disk"), "{text}");
            assert_eq!(names(&store), ["a"]);
            // Still full: still refused.
            assert!(apply(&store, register("c")).is_err());
        }
        disk.0.lock().fails_after = None;
        let expected: &[&str] = match refused {
            Ok(_) => &["a", "b", "d"],
            Err(_) => &["a", "d"],
        };
        let index = apply(&store, register("d")).unwrap();
        assert_eq!(index, expected.len() as u64);
        assert_eq!(names(&store), expected);
        let image = store.image();
        drop(store);
        assert_eq!(
            store_on(&disk).image(),
            image,
            "failing after {fails_after}"
        );
        if refused.is_ok() {
            break;
        }
    }
    assert!(failed > 3, "{failed} operations of a write can fail");
}

/// The same for a replacement of everything.
#[test]
fn a_replacement_that_fails_leaves_everything() {
    let other = Store::new(Box::new(MemoryBackend), Arc::new(AllowAll)).unwrap();
    other.apply(Transaction::from(one_of_each())).unwrap();
    for fails_after in 0.. {
        let disk = Disk::default();
        let store = store_on(&disk);
        apply(&store, register("a")).unwrap();
        disk.0.lock().fails_after = Some(fails_after);
        let replaced = store.restore(&other.image());
        disk.0.lock().fails_after = None;
        apply(&store, register("d")).unwrap();
        let image = store.image();
        assert_eq!(names(&store).contains(&"a".to_owned()), replaced.is_err());
        drop(store);
        assert_eq!(
            store_on(&disk).image(),
            image,
            "failing after {fails_after}"
        );
        if replaced.is_ok() {
            return;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// After a power cut at any moment, with any part of what wasn't synced written: every acknowledged write is there, and
    /// the one that was under way is there whole or not at all.
    #[test]
    fn r2_a_power_cut_loses_nothing_acknowledged(
        fails_after in 0..150_usize,
        luck in proptest::collection::vec(any::<bool>(), 64),
    ) {
        let disk = Disk::default();
        let store = store_on(&disk);
        disk.0.lock().fails_after = Some(fails_after);
        let memory = Store::new(Box::new(MemoryBackend), Arc::new(AllowAll)).unwrap();
        let mut images = vec![memory.image()];
        let mut acknowledged = 0;
        for i in 0..20 {
            let op = if i == 7 {
                Op::DeregisterNode { node: "n1".into() }
            } else {
                register(&format!("service-{i}-{}", "x".repeat(i * 200)))
            };
            apply(&memory, op.clone()).unwrap();
            images.push(memory.image());
            match apply(&store, op) {
                Ok(index) => acknowledged = index as usize,
                Err(_) => break,
            }
        }
        let mut luck = luck.into_iter().cycle();
        let left = disk.0.lock().after_power_cut(|| luck.next().unwrap());
        if acknowledged > 0 {
            let image = check(path(), left).unwrap();
            let index = image.index as usize;
            prop_assert!(index == acknowledged || index == acknowledged + 1, "{index}, not {acknowledged}");
            prop_assert_eq!(&image, &images[index]);
        }
    }
}
