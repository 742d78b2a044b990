//! What is wrong with a document, and where: the place is kept as a path while reading and checking, and turned into
//! line and column at the end.

use std::fmt;

use crate::hcl::{Data, Pos, Value, printable};

/// One step of a path into a document.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// A key of an object.
    Key(String),
    /// An item of a list, from 0.
    Index(usize),
}

/// Where in a document the reader is; built on the stack, one frame a level.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    parent: Option<&'a Place<'a>>,
    step: Option<StepRef<'a>>,
}

#[derive(Debug, Clone, Copy)]
enum StepRef<'a> {
    Key(&'a str),
    Index(usize),
}

impl<'a> Place<'a> {
    /// The top of a document.
    pub const ROOT: Place<'static> = Place {
        parent: None,
        step: None,
    };

    /// The place of a key below this one.
    #[must_use]
    pub const fn key(&'a self, key: &'a str) -> Place<'a> {
        Place {
            parent: Some(self),
            step: Some(StepRef::Key(key)),
        }
    }

    /// The place of a list item below this one.
    #[must_use]
    pub const fn index(&'a self, index: usize) -> Place<'a> {
        Place {
            parent: Some(self),
            step: Some(StepRef::Index(index)),
        }
    }

    /// The steps from the top to here.
    #[must_use]
    pub fn path(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut place = Some(self);
        while let Some(at) = place {
            match at.step {
                Some(StepRef::Key(key)) => steps.push(Step::Key(key.to_owned())),
                Some(StepRef::Index(index)) => steps.push(Step::Index(index)),
                None => {}
            }
            place = at.parent;
        }
        steps.reverse();
        steps
    }
}

/// Something wrong with a record, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The path from the top of the document.
    pub path: Vec<Step>,
    /// Line and column, when the record came from a text.
    pub pos: Option<Pos>,
    /// What is wrong and what to do.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.path.iter().enumerate() {
            match step {
                Step::Key(key) if i == 0 => write!(f, "{}", printable(key))?,
                Step::Key(key) => write!(f, ".{}", printable(key))?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        if self.path.is_empty() {
            write!(f, "{}", self.message)
        } else {
            write!(f, ": {}", self.message)
        }
    }
}

/// All that was found while reading and checking one document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problems {
    /// Reasons to refuse the document.
    pub errors: Vec<Problem>,
    /// What has no effect here, or looks like a mistake; the document is accepted.
    pub warnings: Vec<Problem>,
}

/// Most errors, and most warnings, that are kept of one document; a last one says that there are more. A document of some
/// megabytes can have a hundred thousand.
pub const MAX_PROBLEMS: usize = 100;

impl Problems {
    /// Notes a reason to refuse the document. Beyond [`MAX_PROBLEMS`] only the first is noted, as "more".
    pub fn error(&mut self, at: &Place<'_>, message: impl Into<String>) {
        note(&mut self.errors, at, message);
    }

    /// Notes something to tell the author without refusing the document. Beyond [`MAX_PROBLEMS`] only the first is noted, as
    /// "more".
    pub fn warning(&mut self, at: &Place<'_>, message: impl Into<String>) {
        note(&mut self.warnings, at, message);
    }

    /// Takes over what was found elsewhere, up to the same limit.
    pub fn append(&mut self, other: Problems) {
        append(&mut self.errors, other.errors);
        append(&mut self.warnings, other.warnings);
    }

    /// Whether further errors are noted no more, so that nobody need look for words.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.errors.len() > MAX_PROBLEMS
    }

    /// Whether the document is acceptable.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.errors.is_empty()
    }

    /// Fills in line and column of every problem from the document's tree. A path that the tree doesn't have (a key
    /// that is missing) gets the place of its nearest parent.
    pub fn locate(&mut self, document: &Value) {
        for problem in self.errors.iter_mut().chain(&mut self.warnings) {
            problem.pos = Some(locate(document, &problem.path));
        }
    }

    /// The errors, one a line.
    #[must_use]
    pub fn text(&self) -> String {
        self.errors
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("\n")
    }
}

const MORE: &str = "from here on more is wrong; mend what is named before";

fn note(problems: &mut Vec<Problem>, at: &Place<'_>, message: impl Into<String>) {
    if problems.len() <= MAX_PROBLEMS {
        let mut message = message.into();
        if problems.len() == MAX_PROBLEMS {
            message = MORE.to_owned();
        }
        problems.push(Problem {
            path: at.path(),
            pos: None,
            message: printable(&message).into_owned(),
        });
    }
}

fn append(problems: &mut Vec<Problem>, others: Vec<Problem>) {
    for mut other in others {
        match problems.len() {
            n if n > MAX_PROBLEMS => return,
            MAX_PROBLEMS => MORE.clone_into(&mut other.message),
            _ => {}
        }
        problems.push(other);
    }
}

fn locate(document: &Value, path: &[Step]) -> Pos {
    let mut at = document;
    let mut pos = document.pos;
    for step in path {
        // A single object may stand where a list is wanted, and the reverse.
        let next = match (step, &at.data) {
            (Step::Index(index), Data::List(items)) => items.get(*index).map(|v| (v, v.pos)),
            (Step::Index(_), _) => Some((at, pos)),
            (Step::Key(key), data) => {
                let data = match data {
                    Data::List(items) if items.len() == 1 => &items[0].data,
                    other => other,
                };
                match data {
                    Data::Object(members) => members
                        .iter()
                        .find(|m| same_key(&m.key, key))
                        .map(|m| (&m.value, m.pos)),
                    _ => None,
                }
            }
        };
        match next {
            Some((value, place)) => {
                at = value;
                pos = place;
            }
            None => break,
        }
    }
    pos
}

/// Whether two spellings name the same key: case and underscores don't count (store.md, head: naming).
#[must_use]
pub fn same_key(a: &str, b: &str) -> bool {
    fn letters(s: &str) -> impl Iterator<Item = u8> {
        s.bytes()
            .filter(|c| *c != b'_')
            .map(|c| c.to_ascii_lowercase())
    }
    a == b || letters(a).eq(letters(b))
}
