//! All components, from the lists of the crates.

use std::sync::OnceLock;

use millstream_pipeline::node::{Build, Component};

/// The components that another program adds.
static ADDED: OnceLock<&'static [Component]> = OnceLock::new();

/// Adds components. Called once, before anything else.
pub fn add(components: &'static [Component]) {
    ADDED.get_or_init(|| components);
}

/// The section of the configuration that a component belongs to.
pub fn section(component: &Component) -> &'static str {
    match component.build {
        Build::Source(_) => "sources",
        Build::Processor(_) => "processors",
        Build::Channel(_) => "channels",
        Build::Sink(_) => "sinks",
    }
}

/// All components.
pub fn all() -> impl Iterator<Item = &'static Component> {
    let lists = [
        millstream_sources::COMPONENTS,
        millstream_processors::COMPONENTS,
        millstream_channels::COMPONENTS,
        millstream_sinks::COMPONENTS,
        ADDED.get().copied().unwrap_or_default(),
    ];
    lists.into_iter().flatten()
}

/// The component of a section with this name.
pub fn find(in_section: &str, name: &str) -> Option<&'static Component> {
    all().find(|component| section(component) == in_section && component.name == name)
}
