//! Files on their way into the local state, and what the log is told of it.

use std::sync::Arc;

use tracing::{error, info, warn};

use crate::config_source::{LocalState, Origin, OriginRecords, RecordError};
use crate::model::NameKey;
use crate::server::files::{KeptRecords, LocalRecords, OwnedRecords, RefusedRecord, ReloadOutcome};

/// Tells the log what came of a reload.
pub(super) fn report_reload(outcome: &ReloadOutcome) {
    match outcome {
        ReloadOutcome::Unchanged => info!("the files are unchanged"),
        ReloadOutcome::Applied {
            report,
            warnings,
            settings,
        } => {
            for warning in warnings {
                warn!("{warning}");
            }
            if !settings.is_empty() {
                warn!(
                    "changed in the files, in effect after a restart: {}",
                    settings.join(", ")
                );
            }
            info!(
                changed = report.files_changed,
                gone = report.files_gone,
                entries_written = report.entries_written,
                entries_deleted = report.entries_deleted,
                "the files were read again and are in effect"
            );
        }
        ReloadOutcome::Refused(problems) => {
            for problem in problems.iter() {
                error!("{problem}");
            }
            error!("the files were not taken over: the last good state stays in effect");
        }
    }
}

/// The local state as the place where services and checks of files go.
pub(super) struct FileRecordsInLocalState(pub Arc<LocalState>);

impl LocalRecords for FileRecordsInLocalState {
    fn replace(&self, records: Vec<OwnedRecords>) -> Result<(), Vec<RefusedRecord>> {
        let records = records.into_iter().map(|of_file| OriginRecords {
            origin: Origin::file(&of_file.file),
            services: of_file.services,
            checks: of_file.checks,
        });
        let refused = |error: RecordError| RefusedRecord {
            file: error.origin.path().unwrap_or_default().to_owned(),
            is_check: error.is_check,
            position: error.position,
            problems: error.problems,
        };
        match self.0.replace_origins(records.collect()) {
            Ok(_) => Ok(()),
            Err(errors) => Err(errors.into_iter().map(refused).collect()),
        }
    }

    fn kept(&self) -> KeptRecords {
        let origins = self.0.origins();
        let files = origins.iter().filter_map(Origin::path);
        let of_api = |origin: &Origin| origin.path().is_none();
        let services = self.0.services().into_iter();
        let checks = self.0.checks().into_iter();
        KeptRecords {
            files: files.map(str::to_owned).collect(),
            services: services
                .filter(|entry| of_api(&entry.origin) && entry.sidecar_of.is_none())
                .map(|entry| NameKey::new(&entry.service.id))
                .collect(),
            checks: checks
                .filter(|check| check.alone.as_ref().is_some_and(of_api))
                .map(|check| NameKey::new(&check.check.check_id))
                .collect(),
        }
    }
}
