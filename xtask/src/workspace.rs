//! What cargo knows of the workspace.

use std::path::Path;

use cargo_metadata::{Metadata, MetadataCommand, Package};

/// The workspace as `cargo metadata` tells it, without what it depends on from outside.
#[derive(Debug)]
pub(crate) struct Workspace {
    metadata: Metadata,
}

impl Workspace {
    pub(crate) fn read() -> Result<Self, String> {
        let metadata = MetadataCommand::new()
            .current_dir(root())
            .no_deps()
            .exec()
            .map_err(|error| format!("`cargo metadata` failed: {error}"))?;
        Ok(Self { metadata })
    }

    /// The members, by name.
    pub(crate) fn members(&self) -> Vec<&Package> {
        let mut members = self.metadata.workspace_packages();
        members.sort_by(|a, b| a.name.cmp(&b.name));
        members
    }

    pub(crate) fn member(&self, name: &str) -> Option<&Package> {
        self.members().into_iter().find(|member| member.name.as_str() == name)
    }

    /// The members that users can have.
    pub(crate) fn published(&self) -> Vec<&Package> {
        let mut members = self.members();
        members.retain(|member| member.publish.is_none());
        members
    }

    /// Where cargo builds: `target`, or what `CARGO_TARGET_DIR` says.
    pub(crate) fn target(&self) -> &Path {
        self.metadata.target_directory.as_std_path()
    }
}

/// The root of the checkout that this program was built from.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder in the workspace")
}
