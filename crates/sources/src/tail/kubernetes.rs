//! The logs of pods: the paths to which the kubelet writes them, and the values that follow from a path.
//!
//! ```text
//! /var/log/pods / NAMESPACE_POD_UID / CONTAINER / 0.log
//!                                                 0.log.20261121-070000        rotated by the kubelet
//!                                                 0.log.20261120-070000.gz     and later compressed
//! ```
//!
//! Names of namespaces and pods contain no `_`, so `NAMESPACE_POD_UID` can be split at each `_`.

use std::{fs, path::Path};

use millstream_record::Values;
use schemars::JsonSchema;
use serde::Deserialize;

use super::scan::tidy;

/// The names of the values that follow from the path of a pod's log.
const VALUES: [&str; 4] = [
    "kubernetes.namespace",
    "kubernetes.pod",
    "kubernetes.container",
    "kubernetes.uid",
];

/// The names of all values of a pod's log: those of every file, then [`VALUES`].
pub(super) const FILE_VALUES: [&str; 6] =
    ["host", "path", VALUES[0], VALUES[1], VALUES[2], VALUES[3]];

/// The file in which a pod finds its namespace.
const NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// The default tag.
pub(super) const TAG: &str = "kube.{kubernetes.namespace}.{kubernetes.pod}.{kubernetes.container}";

/// The logs of the pods of this machine.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Kubernetes {
    /// Log directory of the kubelet.
    root: String,
    /// Pod in which Millstream runs, whose logs are not read: `NAMESPACE/POD`, or `POD` in any namespace. Default: the environment
    /// variables `POD_NAMESPACE` (or the namespace of the service account) and `POD_NAME` (or `HOSTNAME`, which is the name of the
    /// pod unless it uses `hostNetwork`).
    own_pod: Option<String>,
}

impl Default for Kubernetes {
    fn default() -> Self {
        Self {
            root: "/var/log/pods".to_owned(),
            own_pod: None,
        }
    }
}

impl Kubernetes {
    /// The directory in the form that paths of a scan have: without `.`, and without a slash at the end.
    fn root(&self) -> String {
        tidy(&self.root)
    }

    /// [`Kubernetes::root`] in front of the rest of a pattern.
    fn prefix(&self) -> String {
        match self.root() {
            root if root.is_empty() || root.ends_with('/') => root,
            root => root + "/",
        }
    }

    /// The pattern that matches the paths of all current logs.
    pub(super) fn paths(&self) -> String {
        format!("{}*/*/*.log", self.prefix())
    }

    /// The pattern that matches the logs of the pod in which Millstream runs. None if the name of the pod is unknown.
    pub(super) fn itself(&self) -> Option<String> {
        let variable = |name| std::env::var(name).ok();
        let (namespace, pod) = match &self.own_pod {
            Some(own) => match own.split_once('/') {
                Some((namespace, pod)) => (Some(namespace.to_owned()), pod.to_owned()),
                None => (None, own.clone()),
            },
            None => {
                let of_account = || fs::read_to_string(NAMESPACE).ok();
                let namespace = variable("POD_NAMESPACE").or_else(of_account);
                (
                    namespace,
                    variable("POD_NAME").or_else(|| variable("HOSTNAME"))?,
                )
            }
        };
        let is_name = |text: &String| {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
            !text.is_empty() && text.bytes().all(fits)
        };
        // If the namespace is unknown, pods with this name are excluded in all namespaces.
        let namespace = namespace.map(|name| name.trim().to_owned());
        let namespace = namespace.filter(is_name).unwrap_or("*".to_owned());
        is_name(&pod).then(|| format!("{}{namespace}_{pod}_*/**", self.prefix()))
    }

    /// Sets the values that follow from the path of a log.
    pub(super) fn set_values(&self, path: &Path, values: &mut Values) {
        let Ok(below) = path.strip_prefix(self.root()) else {
            return;
        };
        let mut parts = below.iter().map(|part| part.to_string_lossy());
        let (Some(pod), Some(container)) = (parts.next(), parts.next()) else {
            return;
        };
        let mut names = pod.splitn(3, '_');
        let names = [names.next(), names.next(), Some(&*container), names.next()];
        for (name, value) in VALUES.iter().zip(names) {
            values.set(name, value.unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_a_log_yields_its_pod_and_container() {
        let mut values = Values::new();
        let path = "/var/log/pods/shop_web-7f9_0a1b-2c/nginx/0.log.20261121-070000";
        Kubernetes::default().set_values(path.as_ref(), &mut values);
        let read = VALUES.map(|name| values.get(name).unwrap());
        assert_eq!(read, ["shop", "web-7f9", "nginx", "0a1b-2c"]);
        let mut values = Values::new();
        Kubernetes::default().set_values("/var/log/other.log".as_ref(), &mut values);
        assert!(values.is_empty());
    }

    #[test]
    fn a_root_may_be_written_in_any_way() {
        for (root, paths) in [
            ("./pods", "pods/*/*/*.log"),
            ("pods/", "pods/*/*/*.log"),
            ("/x//./pods//", "/x/pods/*/*/*.log"),
            (".", "*/*/*.log"),
            ("/", "/*/*/*.log"),
        ] {
            let kubernetes = Kubernetes {
                root: root.to_owned(),
                own_pod: Some("n/me".to_owned()),
            };
            assert_eq!(kubernetes.paths(), paths, "{root}");
            let start = paths.strip_suffix("*/*/*.log").unwrap();
            assert_eq!(kubernetes.itself().unwrap(), format!("{start}n_me_*/**"));
            let mut values = Values::new();
            let path = format!("{start}shop_web_0a/nginx/0.log");
            kubernetes.set_values(path.as_ref(), &mut values);
            assert_eq!(values.get("kubernetes.pod"), Some("web"), "{root}");
        }
    }

    #[test]
    fn the_pod_of_millstream_is_excluded_by_its_name() {
        let mut kubernetes = Kubernetes {
            root: "/pods/".to_owned(),
            own_pod: Some("millstream-x1".to_owned()),
        };
        assert_eq!(kubernetes.itself().unwrap(), "/pods/*_millstream-x1_*/**");
        kubernetes.own_pod = Some("logging/millstream-0".to_owned());
        assert_eq!(
            kubernetes.itself().unwrap(),
            "/pods/logging_millstream-0_*/**"
        );
        assert_eq!(kubernetes.paths(), "/pods/*/*/*.log");
    }
}
