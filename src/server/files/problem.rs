//! What is wrong with configuration files, each finding with its file, line and column.

use std::fmt;
use std::sync::Arc;

use crate::hcl::{Pos, printable};
use crate::model::{Problem, Step};

/// A file as messages name it: the path as the user wrote it, joined with the file's name.
pub type ShownPath = Arc<str>;

/// One finding. Shown as `path:line:column: Key.path: message`, with what is known of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileProblem {
    /// The file or folder; empty if the finding is about all files together.
    pub path: ShownPath,
    /// Line and column, if it is about a place in the file.
    pub pos: Option<Pos>,
    /// The keys from the top of the file; empty if it is about the file.
    pub key: Vec<Step>,
    /// What is wrong and what to do.
    pub message: String,
}

impl FileProblem {
    /// A finding about a file or folder as a whole.
    pub fn of_file(path: &ShownPath, message: impl Into<String>) -> Self {
        Self {
            path: path.clone(),
            pos: None,
            key: Vec::new(),
            message: message.into(),
        }
    }

    /// A finding about all files together.
    pub fn of_all(message: impl Into<String>) -> Self {
        Self::of_file(&ShownPath::from(""), message)
    }

    pub(super) fn of_record(path: &ShownPath, problem: Problem) -> Self {
        Self {
            path: path.clone(),
            pos: problem.pos,
            key: problem.path,
            message: problem.message,
        }
    }

    /// The keys as messages show them: `Connect.SidecarService.Proxy.Upstreams[0]`.
    #[must_use]
    pub fn key_text(&self) -> String {
        let mut text = String::new();
        for step in &self.key {
            match step {
                Step::Key(key) if text.is_empty() => text.push_str(&printable(key)),
                Step::Key(key) => {
                    text.push('.');
                    text.push_str(&printable(key));
                }
                Step::Index(index) => text.push_str(&format!("[{index}]")),
            }
        }
        text
    }
}

impl fmt::Display for FileProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}:", self.path)?;
            if let Some(pos) = self.pos {
                write!(f, "{pos}:")?;
            }
            f.write_str(" ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key_text())?;
        }
        f.write_str(&self.message)
    }
}

/// Everything that is wrong with a set of files: sorted, at least one. Shown one a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileProblems(Vec<FileProblem>);

impl FileProblems {
    /// `Err` with all problems, sorted, if there are any.
    ///
    /// # Errors
    /// If `problems` isn't empty.
    pub fn none_of(mut problems: Vec<FileProblem>) -> Result<(), Self> {
        if problems.is_empty() {
            return Ok(());
        }
        problems.sort();
        problems.dedup();
        Err(Self(problems))
    }

    /// All problems, by path and place.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &FileProblem> {
        self.0.iter()
    }
}

impl From<FileProblem> for FileProblems {
    fn from(problem: FileProblem) -> Self {
        Self(vec![problem])
    }
}

impl fmt::Display for FileProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for FileProblems {}
