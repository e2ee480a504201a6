{{/* Names, labels, metadata and rules of the archiver. */}}

{{- define "allranks.archiverName" -}}
{{- printf "%s-archiver" (include "allranks.fullname" .) }}
{{- end }}

{{- define "allranks.archiverSelectorLabels" -}}
app.kubernetes.io/name: {{ include "allranks.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: archiver
{{- end }}

{{/* From (list $ namespace its-own-annotations). Without a namespace: of a cluster-scoped object. */}}
{{- define "allranks.archiverMetadata" -}}
{{- $root := index . 0 }}
{{- with index . 1 }}
name: {{ include "allranks.archiverName" $root }}
namespace: {{ . | quote }}
{{- else }}
name: {{ include "allranks.clusterName" $root }}-archiver
{{- end }}
labels:
  {{- include "allranks.labels" $root | nindent 2 }}
  app.kubernetes.io/component: archiver
{{- with include "allranks.annotations" (list $root (index . 2)) }}
{{ . }}
{{- end }}
{{- end }}

{{/* From (list $ namespace): of the right to read the Secrets of a namespace. */}}
{{- define "allranks.archiverSecretsMetadata" -}}
{{- $root := index . 0 -}}
name: {{ include "allranks.archiverName" $root }}-secrets
namespace: {{ index . 1 }}
labels:
  {{- include "allranks.labels" $root | nindent 2 }}
  app.kubernetes.io/component: archiver
{{- with include "allranks.annotations" (list $root dict) }}
{{ . }}
{{- end }}
{{- end }}

{{/* It reads jobs, sweeps, pods, their logs and Events, and changes none of them. */}}
{{- define "allranks.archiverRules" -}}
- apiGroups: [allranks.dev]
  resources: [distributedtrainings, trainingsweeps]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
# create and patch: the Event NotArchived of a job whose log is lost.
- apiGroups: [""]
  resources: [events]
  verbs: [list, create, patch]
{{- end }}

{{- define "allranks.archiverSubjects" -}}
subjects:
  - kind: ServiceAccount
    name: {{ include "allranks.archiverName" . }}
    namespace: {{ .Release.Namespace | quote }}
{{- end }}

{{/* From (list $ uses): the group of the files of a claim, for a pod that uses the archive. */}}
{{- define "allranks.archiveGroup" -}}
{{- $root := index . 0 }}
{{- if and (index . 1) $root.Values.archive.claim $root.Values.archive.fsGroup }}
fsGroup: {{ $root.Values.archive.fsGroup | int64 }}
fsGroupChangePolicy: OnRootMismatch
{{- end }}
{{- end }}

{{- define "allranks.egressToArchive" -}}
- ports:
    {{- range .Values.archive.ports }}
    - port: {{ . }}
      protocol: TCP
    {{- end }}
{{- end }}
