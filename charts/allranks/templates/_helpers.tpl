{{/* Names, labels and conditions shared by several templates. */}}

{{- define "allranks.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "allranks.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "allranks.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "allranks.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Name of cluster-scoped objects; unique for releases of the same name in different namespaces. */}}
{{- define "allranks.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "allranks.fullname" .) }}
{{- end }}

{{- define "allranks.serviceAccountName" -}}
{{- default (include "allranks.fullname" .) .Values.serviceAccount.name }}
{{- end }}

{{- define "allranks.selectorLabels" -}}
app.kubernetes.io/name: {{ include "allranks.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "allranks.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ include "allranks.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: allranks
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "allranks.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{/* The following templates return "true" or nothing. */}}

{{- define "allranks.leaderElection" -}}
{{- $enabled := .Values.leaderElection.enabled }}
{{- if kindIs "invalid" $enabled }}{{ $enabled = gt (int .Values.replicas) 1 }}{{ end }}
{{- if $enabled }}true{{ end }}
{{- end }}

{{- define "allranks.pools" -}}
{{- $enabled := .Values.pools.enabled }}
{{- if kindIs "invalid" $enabled }}{{ $enabled = empty .Values.namespaces }}{{ end }}
{{- if $enabled }}true{{ end }}
{{- end }}

{{- define "allranks.reports" -}}
{{- $enabled := .Values.reports.enabled }}
{{- if kindIs "invalid" $enabled }}{{ $enabled = empty .Values.namespaces }}{{ end }}
{{- if $enabled }}true{{ end }}
{{- end }}

{{- define "allranks.jobPolicies" -}}
{{- $enabled := .Values.networkPolicy.jobs }}
{{- if kindIs "invalid" $enabled }}{{ $enabled = .Values.networkPolicy.enabled }}{{ end }}
{{- if $enabled }}true{{ end }}
{{- end }}

{{- define "allranks.aggregate" -}}
{{- $enabled := .Values.rbac.aggregate }}
{{- if kindIs "invalid" $enabled }}{{ $enabled = empty .Values.namespaces }}{{ end }}
{{- if $enabled }}true{{ end }}
{{- end }}
