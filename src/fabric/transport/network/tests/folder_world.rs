//! A world with messages through the files of a folder.

use super::*;

/// Ranks with a common folder: every message is a file.
pub(super) struct FolderWorld {
    folder: PathBuf,
    rank: usize,
    size: usize,
    step: AtomicUsize,
}

impl FolderWorld {
    fn write(&self, name: &str, data: &[u8]) {
        let draft = self.folder.join(format!("draft-{}", self.rank));
        fs::write(&draft, data).unwrap();
        fs::rename(draft, self.folder.join(name)).unwrap();
    }

    pub(super) fn handle(folder: &Path, rank: usize, size: usize) -> world::Handle {
        let world = Self { folder: folder.to_owned(), rank, size, step: AtomicUsize::new(0) };
        world.write(&format!("pid-{rank}"), std::process::id().to_string().as_bytes());
        let world: world::Handle = Arc::new(world);
        world.barrier().unwrap();
        world
    }
}

impl World for FolderWorld {
    fn position(&self) -> world::Position {
        let (rank, size) = (self.rank, self.size);
        world::Position { rank, size, local_rank: rank, local_size: size }
    }
    fn describe(&self) -> String {
        format!("folder {}", self.folder.display())
    }
    fn barrier(&self) -> Result<(), world::Error> {
        self.all_gather(&[]).map(|_| ())
    }
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, world::Error> {
        let step = self.step.fetch_add(1, Ordering::Relaxed);
        self.write(&format!("{step}-{}", self.rank), mine);
        let start = Instant::now();
        let read = |rank: usize| loop {
            if let Ok(data) = fs::read(self.folder.join(format!("{step}-{rank}"))) {
                return data;
            }
            assert!(start.elapsed() < GIVE_UP, "rank {rank} does not come");
            thread::sleep(Duration::from_micros(200));
        };
        Ok((0..self.size).map(read).collect())
    }
    fn check(&self) -> Result<(), world::Error> {
        for rank in 0..self.size {
            let pid = fs::read_to_string(self.folder.join(format!("pid-{rank}"))).unwrap();
            let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if status.is_empty() || status.contains(") Z ") {
                return Err(world::Error::RankFailed {
                    rank,
                    host: "here".into(),
                    reason: world::Reason::Died("it was killed".into()),
                });
            }
        }
        Ok(())
    }
    fn fail(&self, reason: world::Reason) {
        eprintln!("rank {} failed: {reason}", self.rank);
    }
    fn abort(&self, code: i32, message: &str) -> ! {
        eprintln!("{message}");
        std::process::exit(code)
    }
}

pub(super) fn new_folder() -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = env::temp_dir().join(format!("collectives-test-{}-{number}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}
