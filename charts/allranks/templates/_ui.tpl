{{/* Names, labels and metadata of the web UI, from which NOTES.txt and ui.yaml are made. */}}

{{- define "allranks.uiName" -}}
{{- printf "%s-ui" (include "allranks.fullname" .) }}
{{- end }}

{{- define "allranks.uiSelectorLabels" -}}
app.kubernetes.io/name: {{ include "allranks.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: ui
{{- end }}

{{- define "allranks.uiMetadata" -}}
{{- $root := index . 0 }}
name: {{ include "allranks.uiName" $root }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- include "allranks.labels" $root | nindent 2 }}
  app.kubernetes.io/component: ui
{{- with include "allranks.annotations" . }}
{{ . }}
{{- end }}
{{- end }}
